// Chooses the backend of a kernel: the one place that knows which backends were built. Not installed.
#pragma once

#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/execution.h>

namespace fusegrad {

/// Calls `launch` with the execution of the context's device. `launch` is a generic lambda that calls an overload set
/// of kernels, for example [&](const auto& execution) { kernels::relu_forward(execution, x, y, mask); }.
template <class F>
void dispatch(const Context& context, F&& launch) {
  launch(CpuExecution{context.state().pool()});
}

}  // namespace fusegrad
