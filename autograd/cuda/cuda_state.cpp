#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/device.h>
#include <fusegrad/autograd/cuda/device_memory.h>

namespace fusegrad::detail {

CudaState::CudaState(ContextState& context)
    : context_(context), backend_(static_cast<CudaBackend&>(context.backend())) {
  const DeviceScope scope(device());
  blaslt_ = make_blaslt(backend_, context.settings());
}

int CudaState::device() const { return backend_.device().index; }

CUstream_st* CudaState::stream() const { return backend_.stream().get(); }

std::shared_ptr<ContextState> make_cuda_context(const ContextSettings& settings, int device, CUstream_st* stream) {
  auto context = std::make_shared<ContextState>(std::make_unique<CudaBackend>(device, stream), settings);
  context->attach(std::make_shared<CudaState>(*context));
  return context;
}

}  // namespace fusegrad::detail
