#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/error.h>

namespace fusegrad::detail {

bool is_sticky(cudaError_t status) {
  // The errors of which the CUDA runtime's documentation says that the process must be terminated and relaunched.
  switch (status) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice: return true;
    default: return false;
  }
}

void check_cuda(cudaError_t status, std::string_view call, const char* file, int line) {
  if (status == cudaSuccess) [[likely]]
    return;
  drop_cuda_error(status);
  std::string message = detail::format("cuda: {} failed with {} ({}) at {}:{}", call, cudaGetErrorName(status),
                                       cudaGetErrorString(status), file, line);
  if (is_sticky(status)) {
    message +=
        "; an earlier kernel caused it (run with CUDA_LAUNCH_BLOCKING=1 to see which), and the process must restart "
        "before it can use the GPU again";
  }
  throw CudaError(message);
}

void drop_cuda_error(cudaError_t status) noexcept {
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
}

}  // namespace fusegrad::detail
