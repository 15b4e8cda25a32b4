#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/cuda/device.h>
#include <fusegrad/autograd/cuda/elementwise.h>

namespace fusegrad::detail {

int cuda_device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) {
    drop_cuda_error(status);
    return 0;
  }
  check_cuda(status, "cudaGetDeviceCount(&count)", __FILE__, __LINE__);
  return count;
}

bool has_kernels_for(int device) {
  const DeviceScope scope(device);
  return kernels_run_on_current_device();
}

void require_cuda_device(int device) {
  const int count = cuda_device_count();
  require<DeviceError>(count > 0, "context: there is no GPU, or no driver for it");
  require<DeviceError>(device >= 0 && device < count, "context: there is no GPU {}; this machine has {}, from 0 to {}",
                       device, count, count - 1);
  if (has_kernels_for(device)) return;
  int major = 0;
  int minor = 0;
  FUSEGRAD_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  FUSEGRAD_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  throw DeviceError(
      detail::format("context: cuda:{} has compute capability {}.{}, and this fusegrad was built for {}; build it with "
                     "-DCMAKE_CUDA_ARCHITECTURES={}{}",
                     device, major, minor, FUSEGRAD_CUDA_ARCHITECTURES, major, minor));
}

std::string cuda_card(int device) {
  cudaDeviceProp properties = {};
  FUSEGRAD_CUDA(cudaGetDeviceProperties(&properties, device));
  return detail::format("{}, {} multiprocessors", static_cast<const char*>(properties.name),
                        properties.multiProcessorCount);
}

int multiprocessor_count(int device) {
  int count = 0;
  FUSEGRAD_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

int cuda_driver_version() {
  int version = 0;
  FUSEGRAD_CUDA(cudaDriverGetVersion(&version));
  return version;
}

DeviceScope::DeviceScope(int device) {
  FUSEGRAD_CUDA(cudaGetDevice(&former_));
  if (former_ == device) return;
  FUSEGRAD_CUDA(cudaSetDevice(device));
  changed_ = true;
}

DeviceScope::~DeviceScope() {
  if (changed_) drop_cuda_error(cudaSetDevice(former_));
}

}  // namespace fusegrad::detail
