// Every call of the CUDA runtime goes through FUSEGRAD_CUDA, every kernel launch through FUSEGRAD_CUDA_LAUNCH. Not
// installed.
#pragma once

#include <string_view>

#include <cuda_runtime_api.h>

namespace fusegrad::detail {

/// True if the process cannot use the GPU any more after `status`: every later call returns the same error.
bool is_sticky(cudaError_t status);

/// Throws CudaError with the call, the error's name and the place, unless `status` is success. The runtime's record of
/// the error is cleared, so that a later check does not report it again.
void check_cuda(cudaError_t status, std::string_view call, const char* file, int line);

/// For destructors, which must not throw: an error is dropped, and not left for the next check to find.
void drop_cuda_error(cudaError_t status) noexcept;

}  // namespace fusegrad::detail

/// Calls a function of the CUDA runtime. Errors: CudaError.
#define FUSEGRAD_CUDA(call) ::fusegrad::detail::check_cuda((call), #call, __FILE__, __LINE__)

/// After a kernel launch: throws CudaError if it could not be launched, naming `kernel` and the place.
#define FUSEGRAD_CUDA_LAUNCH(kernel) \
  ::fusegrad::detail::check_cuda(cudaGetLastError(), "launch of " kernel, __FILE__, __LINE__)
