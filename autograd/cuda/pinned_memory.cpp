#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/cuda/pinned_memory.h>

namespace fusegrad::detail {

PinnedMemory::PinnedMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* block = nullptr;
  const cudaError_t status = cudaMallocHost(&block, bytes);
  if (status == cudaErrorMemoryAllocation) {
    drop_cuda_error(status);
    throw OutOfMemoryError(detail::format("out of page-locked host memory: {} bytes were asked for", bytes));
  }
  check_cuda(status, "cudaMallocHost(&block, bytes)", __FILE__, __LINE__);
  data_ = static_cast<std::byte*>(block);
}

PinnedMemory::~PinnedMemory() {
  if (data_) drop_cuda_error(cudaFreeHost(data_));
}

}  // namespace fusegrad::detail
