// A GPU as a Backend: memory in stream order, copies, fills. Not installed.
//
// Blocks come from a memory pool of the context's own, in the order of its stream (cudaMallocFromPoolAsync): neither a
// new block nor a trimmed one waits for the GPU, a released block is safe although kernels that use it still run, and
// the driver remaps released pages, so that other sizes than before do not fragment the memory. The cache above it
// (MemoryCache) keeps every block for reuse; what it gives back, the pool returns to the system at the next wait. Where
// the driver has no pools, blocks come from cudaMalloc, which may wait.
#pragma once

#include <memory>

#include <fusegrad/autograd/backend.h>
#include <fusegrad/autograd/cuda/pinned_memory.h>
#include <fusegrad/autograd/cuda/stream.h>

struct CUmemPoolHandle_st;

namespace fusegrad::detail {

class Branches;
struct DeviceFault;  // fault.h

class CudaBackend final : public Backend {
 public:
  /// `stream` is the caller's, of that device, and outlives the backend; null makes an own one.
  /// Errors: DeviceError if the device does not exist, is not supported, or is not the stream's; CudaError.
  CudaBackend(int device, CUstream_st* stream);
  ~CudaBackend() override;
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;

  /// Where work goes: the context's stream, or what a Step has put in its place.
  const Stream& stream() const { return *line_; }
  /// The context's stream: the caller's, or its own.
  const Stream& own_stream() const { return *stream_; }
  /// Work goes to `line` from now on; null: to the context's stream.
  void switch_to(const Stream* line) { line_ = line ? line : stream_.get(); }
  /// stream(), for work that is about to be enqueued.
  CUstream_st* work_stream();
  /// From now on, whoever waits for this device gets what kernels have reported to `fault`, as a ValueError; it is
  /// cleared then. Null: no more.
  void watch(DeviceFault* fault) { fault_ = fault; }

  Device device() const override { return {DeviceType::cuda, device_}; }
  /// Errors: StateError while the stream is being captured.
  void* allocate(std::size_t bytes) override;
  void release(void* block) override;
  void copy_from_host(void* to, const void* from, std::size_t bytes) override;
  /// Errors: CudaError; ValueError for a fault.
  void copy_to_host(void* to, const void* from, std::size_t bytes) override;
  void copy_within(void* to, const void* from, std::size_t bytes) override;
  void fill(void* block, const void* element, std::size_t element_bytes, std::size_t count) override;
  void convert(void* to, Dtype to_dtype, const void* from, Dtype from_dtype, std::size_t count) override;
  /// Errors: CudaError, also of earlier kernels; ValueError for a fault.
  void synchronize() override;
  void set_branches(Branches* branches) override { branches_ = branches; }
  std::unique_ptr<Uploads> uploads(std::size_t bytes, int slots) override;

 private:
  int device_;
  std::unique_ptr<Stream> stream_;
  const Stream* line_ = nullptr;
  Branches* branches_ = nullptr;
  CUmemPoolHandle_st* pool_ = nullptr;  // null where the driver has none
  DeviceFault* fault_ = nullptr;        // device memory
  PinnedMemory seen_;                   // the fault, copied to the host
};

}  // namespace fusegrad::detail
