// GPUs of this machine: how many there are, and which one a thread uses. Not installed.
#pragma once

#include <string>

namespace fusegrad::detail {

/// Number of GPUs; 0 where there is no driver. Errors: CudaError if the driver fails otherwise.
int cuda_device_count();

/// True if this build has kernels for GPU `device`, which exists. Errors: CudaError.
bool has_kernels_for(int device);

/// Errors: DeviceError unless GPU `device` exists and this build has kernels for it; CudaError.
void require_cuda_device(int device);

/// "NVIDIA H200, 132 multiprocessors": what kind of card a GPU is. Errors: CudaError.
std::string cuda_card(int device);

/// Errors: CudaError.
int multiprocessor_count(int device);

/// The CUDA version that the driver supports, as 1000 major + 10 minor. Errors: CudaError.
int cuda_driver_version();

/// Makes a GPU the calling thread's current one, and the former one again when destroyed.
class DeviceScope {
 public:
  /// Errors: CudaError.
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int former_ = 0;
  bool changed_ = false;
};

}  // namespace fusegrad::detail
