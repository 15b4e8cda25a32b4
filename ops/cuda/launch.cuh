// Starts kernels; every launch is checked. Not installed.
#pragma once

#include <string_view>
#include <utility>

#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/execution.h>

namespace fusegrad::kernels {

/// Runs `kernel` on the execution's stream. Nothing is launched for an empty grid. Errors: CudaError that names `name`.
template <class... Parameters, class... Arguments>
void launch(const CudaExecution& execution, std::string_view name, void (*kernel)(Parameters...), dim3 grid,
            int threads, Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  kernel<<<grid, threads, 0, execution.stream>>>(std::forward<Arguments>(arguments)...);
  detail::check_cuda(cudaGetLastError(), name, __FILE__, __LINE__);
}

}  // namespace fusegrad::kernels
