// Chooses the backend of a kernel: the one place that knows which backends were built. Not installed.
#pragma once

#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/device.h>
#include <fusegrad/autograd/execution.h>

namespace fusegrad {

/// Returns launch(execution) with the execution of the context's device. `launch` is a generic lambda that calls an
/// overload set of kernels, for example [&](const auto& execution) { kernels::relu_forward(execution, x, y, mask); }.
template <class F>
auto dispatch(const Context& context, F&& launch) {
  detail::ContextState& state = context.state();
  if constexpr (kWithCuda) {
    if (detail::CudaState* cuda = state.cuda()) {
      const detail::DeviceScope scope(cuda->device());
      return launch(CudaExecution{.stream = cuda->stream(), .state = *cuda});
    }
  }
  return launch(CpuExecution{.pool = state.pool(), .products = state.settings().products});
}

}  // namespace fusegrad
