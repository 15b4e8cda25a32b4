#include <algorithm>

#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/cuda/elementwise.h>
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/autograd/narrow.h>

namespace fusegrad::detail {
namespace {

constexpr int kThreads = 256;

/// Blocks for a grid-stride loop over `count` elements.
unsigned blocks_for(std::int64_t count) {
  constexpr std::int64_t kMaxBlocks = 4096;  // several waves on any GPU; beyond that a thread takes more elements
  return static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMaxBlocks));
}

template <class T>
__global__ void __launch_bounds__(kThreads) fill_kernel(T* to, T element, std::int64_t count) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) to[i] = element;
}

template <class To, class From>
__global__ void __launch_bounds__(kThreads) convert_kernel(To* to, const From* from, std::int64_t count) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += stride) {
    to[i] = narrow<To>(static_cast<double>(from[i]));
  }
}

template <class T>
void launch_fill(CUstream_st* stream, void* to, const void* element, std::int64_t count) {
  fill_kernel<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<T*>(to), *static_cast<const T*>(element), count);
  FUSEGRAD_CUDA_LAUNCH("fill_kernel");
}

}  // namespace

void fill_elements(CUstream_st* stream, void* to, const void* element, std::size_t element_bytes, std::int64_t count) {
  if (count == 0) return;
  switch (element_bytes) {
    case 1: return launch_fill<std::uint8_t>(stream, to, element, count);
    case 2: return launch_fill<std::uint16_t>(stream, to, element, count);
    case 4: return launch_fill<std::uint32_t>(stream, to, element, count);
    default: return launch_fill<std::uint64_t>(stream, to, element, count);
  }
}

void convert_elements(CUstream_st* stream, void* to, Dtype to_dtype, const void* from, Dtype from_dtype,
                      std::int64_t count) {
  if (count == 0) return;
  visit_any(from_dtype, [&]<class From>() {
    visit_floating(to_dtype, [&]<class To>() {
      convert_kernel<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<To*>(to), static_cast<const From*>(from),
                                                                 count);
    });
  });
  FUSEGRAD_CUDA_LAUNCH("convert_kernel");
}

bool kernels_run_on_current_device() {
  cudaFuncAttributes attributes;
  const cudaError_t status = cudaFuncGetAttributes(&attributes, fill_kernel<std::uint8_t>);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    drop_cuda_error(status);
    return false;
  }
  check_cuda(status, "cudaFuncGetAttributes(&attributes, fill_kernel)", __FILE__, __LINE__);
  return true;
}

}  // namespace fusegrad::detail
