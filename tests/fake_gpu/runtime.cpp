// The part of the CUDA runtime that fusegrad calls, over host memory: one GPU whose work is done as soon as it is
// enqueued, except copies from page-locked memory, which are done as late as the order of streams and events allows. It
// is stricter than a real one: freed and new memory is filled with NaN patterns, and a block that is released twice,
// not at all, or while a copy needs it, ends the program.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include <cuda_runtime_api.h>

namespace {

[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "fake gpu: %s\n", what);
  std::abort();
}

bool inside(const void* address, const void* block, std::size_t bytes) {
  const auto* first = static_cast<const char*>(block);
  return first <= address && address < first + bytes;
}

/// Copies that a stream has been given and has not done. Its memory is fixed: a test counts allocations.
class Queue {
 public:
  void add(void* to, const void* from, std::size_t bytes) {
    if (added_ - done_ == copies_.size()) run(done_ + 1);
    copies_[added_++ % copies_.size()] = {to, from, bytes};
  }
  std::size_t added() const { return added_; }
  /// Does the first `count` copies ever added.
  void run(std::size_t count) {
    for (; done_ < count; ++done_) {
      const Copy& copy = copies_[done_ % copies_.size()];
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
  }
  bool needs(const void* block, std::size_t bytes) const {
    for (std::size_t i = done_; i < added_; ++i) {
      const Copy& copy = copies_[i % copies_.size()];
      if (inside(copy.to, block, bytes) || inside(copy.from, block, bytes)) return true;
    }
    return false;
  }

 private:
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  std::array<Copy, 16> copies_{};
  std::size_t added_ = 0;
  std::size_t done_ = 0;
};

}  // namespace

struct CUstream_st {
  std::shared_ptr<Queue> queue = std::make_shared<Queue>();
  bool capturing = false;  // what is captured is done at once all the same
};
struct CUevent_st {
  bool timed = false;
  std::chrono::steady_clock::time_point time = {};  // of the last record
  std::shared_ptr<Queue> queue = nullptr;
  std::size_t point = 0;
};
struct CUmemPoolHandle_st {
  std::map<void*, std::size_t> blocks;
};

namespace {

constexpr std::size_t kMemory = std::size_t{16} << 30;

std::mutex mutex;
std::map<void*, CUmemPoolHandle_st*> owner;
std::map<const void*, std::size_t> pinned;
std::set<cudaStream_t> streams;
std::size_t held = 0;

void run(cudaStream_t stream) { stream->queue->run(stream->queue->added()); }
void run_to(cudaEvent_t event) {
  if (event->queue) event->queue->run(event->point);
}

bool is_pinned(const void* address) {
  const auto after = pinned.upper_bound(address);
  if (after == pinned.begin()) return false;
  const auto& [block, bytes] = *std::prev(after);
  return inside(address, block, bytes);
}

void check_unused(const void* block, std::size_t bytes) {
  for (const cudaStream_t stream : streams) {
    if (stream->queue->needs(block, bytes)) stop("a block was released before a copy from or to it");
  }
}

}  // namespace

extern "C" {

const char* cudaGetErrorName(cudaError_t error) { return error == cudaSuccess ? "cudaSuccess" : "cudaErrorFake"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the fake GPU"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::strcpy(properties->name, "Fake GPU");
  return properties->multiProcessorCount = 9, cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 9, cudaSuccess; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const std::lock_guard lock(mutex);
  return streams.insert(*stream = new CUstream_st), cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* last, int* first) { return *last = *first = 0, cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  run(stream);
  streams.erase(stream);
  return delete stream, cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  return run(stream), cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = stream->capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return stream->capturing = true, cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return *graph = nullptr, stream->capturing = false, cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
// Called by tests of graphs only, which are not run.
cudaError_t cudaDeviceSynchronize() { return cudaErrorNotSupported; }
cudaError_t cudaEventCreate(cudaEvent_t*) { return cudaErrorNotSupported; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaErrorNotSupported; }
cudaError_t cudaMemcpy(void*, const void*, size_t, cudaMemcpyKind) { return cudaErrorNotSupported; }
// There are no graphs: their tests need a GPU.
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) { return *count = 0, cudaSuccess; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long) { return cudaErrorNotSupported; }
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  return run(stream), cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t, int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned) {
  const std::lock_guard lock(mutex);
  return run_to(event), cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return *event = new CUevent_st{.timed = (flags & cudaEventDisableTiming) == 0}, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  event->queue = stream->queue;
  event->point = stream->queue->added();
  event->time = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  if (!from->timed || !to->timed || !from->queue || !to->queue) return cudaErrorInvalidResourceHandle;
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard lock(mutex);
  return run_to(event), cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  return *pool = new CUmemPoolHandle_st, cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  if (!pool->blocks.empty()) stop("a memory pool was destroyed with blocks in use");
  return delete pool, cudaSuccess;
}

cudaError_t cudaMallocFromPoolAsync(void** block, std::size_t bytes, cudaMemPool_t pool, cudaStream_t) {
  const std::lock_guard lock(mutex);
  const std::size_t rounded = (bytes + 511) / 512 * 512;
  if (rounded > kMemory - held) return cudaErrorMemoryAllocation;
  *block = std::aligned_alloc(512, rounded);
  if (!*block) return cudaErrorMemoryAllocation;
  std::memset(*block, 0xFF, rounded);
  held += rounded;
  pool->blocks[*block] = rounded;
  owner[*block] = pool;
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* block, cudaStream_t) {
  const std::lock_guard lock(mutex);
  const auto found = owner.find(block);
  if (found == owner.end()) stop("a block was released that is not in use");
  auto& blocks = found->second->blocks;
  check_unused(block, blocks[block]);
  held -= blocks[block];
  std::memset(block, 0xFF, blocks[block]);
  blocks.erase(block);
  owner.erase(found);
  std::free(block);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** block, std::size_t bytes) {
  static CUmemPoolHandle_st pool;
  return cudaMallocFromPoolAsync(block, bytes, &pool, nullptr);
}
cudaError_t cudaFree(void* block) { return cudaFreeAsync(block, nullptr); }

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  if (inside(to, from, bytes) || inside(from, to, bytes)) stop("a copy between overlapping ranges");
  if (kind == cudaMemcpyHostToDevice && is_pinned(from)) return stream->queue->add(to, from, bytes), cudaSuccess;
  run(stream);
  return std::memcpy(to, from, bytes), cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(mutex);
  run(stream);
  return std::memset(to, value, bytes), cudaSuccess;
}

cudaError_t cudaMallocHost(void** block, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  *block = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  if (!*block) return cudaErrorMemoryAllocation;
  return pinned[*block] = bytes, cudaSuccess;
}
cudaError_t cudaFreeHost(void* block) {
  const std::lock_guard lock(mutex);
  const auto found = pinned.find(block);
  if (found == pinned.end()) stop("page-locked memory was released that is not in use");
  check_unused(block, found->second);
  pinned.erase(found);
  return std::free(block), cudaSuccess;
}

}  // extern "C"
