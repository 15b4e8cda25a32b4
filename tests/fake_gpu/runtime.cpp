// The part of the CUDA runtime that fusegrad calls, over host memory: one GPU whose work is done as soon as it is
// enqueued. It is stricter than a real one: freed and new memory is filled with NaN patterns, and a block that is
// released twice, or not at all, ends the program.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include <cuda_runtime_api.h>

struct CUstream_st {};
struct CUevent_st {};
struct CUmemPoolHandle_st {
  std::map<void*, std::size_t> blocks;
};

namespace {

constexpr std::size_t kMemory = std::size_t{16} << 30;

std::mutex mutex;
std::map<void*, CUmemPoolHandle_st*> owner;
std::size_t held = 0;

[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "fake gpu: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" {

const char* cudaGetErrorName(cudaError_t error) { return error == cudaSuccess ? "cudaSuccess" : "cudaErrorFake"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the fake GPU"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 9, cudaSuccess; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return *stream = new CUstream_st, cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return delete stream, cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t, int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return *event = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }

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

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  const auto* a = static_cast<const char*>(to);
  const auto* b = static_cast<const char*>(from);
  if (a < b + bytes && b < a + bytes) stop("a copy between overlapping ranges");
  return std::memcpy(to, from, bytes), cudaSuccess;
}

cudaError_t cudaMallocHost(void** block, std::size_t bytes) {
  *block = std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  return *block ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void* block) { return std::free(block), cudaSuccess; }

}  // extern "C"
