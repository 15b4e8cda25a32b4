#include <cstring>
#include <functional>

#include <fusegrad/autograd/branches.h>
#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/cuda/cuda_uploads.h>
#include <fusegrad/autograd/cuda/device.h>
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/autograd/cuda/elementwise.h>
#include <fusegrad/autograd/cuda/fault.h>
#include <fusegrad/autograd/step_run.h>

namespace fusegrad::detail {
namespace {

bool overlap(const void* a, const void* b, std::size_t bytes) {
  const auto* first = static_cast<const std::byte*>(a);
  const auto* second = static_cast<const std::byte*>(b);
  const std::less<const std::byte*> before;
  return before(first, second + bytes) && before(second, first + bytes);
}

}  // namespace

CudaBackend::CudaBackend(int device, CUstream_st* stream) : device_(device) {
  require_cuda_device(device);
  const DeviceScope scope(device);
  seen_ = PinnedMemory(sizeof(DeviceFault));
  stream_ = std::make_unique<Stream>(stream);
  line_ = stream_.get();
  require<DeviceError>(stream_->device() == device, "context: the stream belongs to cuda:{}, not to cuda:{}",
                       stream_->device(), device);
  int pools = 0;
  FUSEGRAD_CUDA(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device));
  if (pools == 0) return;
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.handleTypes = cudaMemHandleTypeNone;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  FUSEGRAD_CUDA(cudaMemPoolCreate(&pool_, &properties));
}

CudaBackend::~CudaBackend() {
  // The last blocks may still be in use by kernels on the stream.
  drop_cuda_error(cudaStreamSynchronize(stream_->get()));
  if (pool_) drop_cuda_error(cudaMemPoolDestroy(pool_));
}

CUstream_st* CudaBackend::work_stream() {
  if (branches_) branches_->use_main_line();
  return line_->get();
}

void* CudaBackend::allocate(std::size_t bytes) {
  require<ArenaTooSmall>(
      !stream().capturing(),
      "context: {} bytes were asked for while a graph was captured, more than when its work first ran: "
      "it does not do the same each time",
      bytes);
  const DeviceScope scope(device_);
  void* block = nullptr;
  const cudaError_t status =
      pool_ ? cudaMallocFromPoolAsync(&block, bytes, pool_, stream_->get()) : cudaMalloc(&block, bytes);
  if (status == cudaErrorMemoryAllocation) {
    drop_cuda_error(status);
    return nullptr;
  }
  check_cuda(status, pool_ ? "cudaMallocFromPoolAsync" : "cudaMalloc", __FILE__, __LINE__);
  // Another line may use the block before the context's stream gets to where it came from.
  if (pool_ && line_ != stream_.get()) stream_->synchronize();
  return block;
}

void CudaBackend::release(void* block) {
  // cudaFree waits for the kernels that use the block; the pool orders itself behind them.
  drop_cuda_error(pool_ ? cudaFreeAsync(block, stream_->get()) : cudaFree(block));
}

void CudaBackend::copy_from_host(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  FUSEGRAD_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, work_stream()));
  // Whether `from` may be reused when the call above returns depends on how the memory was allocated.
  stream().synchronize();
}

void CudaBackend::copy_to_host(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  FUSEGRAD_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, work_stream()));
  synchronize();
}

void CudaBackend::copy_within(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || to == from) return;
  if (!overlap(to, from, bytes)) {
    FUSEGRAD_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, work_stream()));
    return;
  }
  void* const between = allocate(bytes);
  require<OutOfMemoryError>(between != nullptr, "out of memory on cuda:{}: {} bytes for a copy within one tensor",
                            device_, bytes);
  CUstream_st* const stream = work_stream();
  const cudaError_t first = cudaMemcpyAsync(between, from, bytes, cudaMemcpyDeviceToDevice, stream);
  const cudaError_t second = cudaMemcpyAsync(to, between, bytes, cudaMemcpyDeviceToDevice, stream);
  release(between);
  check_cuda(first, "cudaMemcpyAsync(between, from, bytes, cudaMemcpyDeviceToDevice, stream)", __FILE__, __LINE__);
  check_cuda(second, "cudaMemcpyAsync(to, between, bytes, cudaMemcpyDeviceToDevice, stream)", __FILE__, __LINE__);
}

void CudaBackend::fill(void* block, const void* element, std::size_t element_bytes, std::size_t count) {
  const DeviceScope scope(device_);
  fill_elements(work_stream(), block, element, element_bytes, static_cast<std::int64_t>(count));
}

void CudaBackend::convert(void* to, Dtype to_dtype, const void* from, Dtype from_dtype, std::size_t count) {
  const DeviceScope scope(device_);
  convert_elements(work_stream(), to, to_dtype, from, from_dtype, static_cast<std::int64_t>(count));
}

void CudaBackend::synchronize() {
  if (!fault_) return stream_->synchronize();
  FUSEGRAD_CUDA(cudaMemcpyAsync(seen_.data(), fault_, sizeof(DeviceFault), cudaMemcpyDeviceToHost, stream_->get()));
  stream_->synchronize();
  DeviceFault seen;
  std::memcpy(&seen, seen_.data(), sizeof seen);
  if (seen.text == 0) return;
  const DeviceFault none;
  copy_from_host(fault_, &none, sizeof none);
  throw ValueError(seen.message());
}

std::unique_ptr<Uploads> CudaBackend::uploads(std::size_t bytes, int slots) {
  const DeviceScope scope(device_);
  return std::make_unique<CudaUploads>(*stream_, bytes, slots);
}

}  // namespace fusegrad::detail
