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

/// The same with the grid cut into clusters of blocks, which can read each other's shared memory.
template <class... Parameters, class... Arguments>
void launch_clusters(const CudaExecution& execution, std::string_view name, void (*kernel)(Parameters...), dim3 grid,
                     dim3 cluster, int threads, Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster.x;
  attribute.val.clusterDim.y = cluster.y;
  attribute.val.clusterDim.z = cluster.z;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = execution.stream;
  config.attrs = &attribute;
  config.numAttrs = cluster.x * cluster.y * cluster.z > 1 ? 1 : 0;
  detail::check_cuda(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), name, __FILE__,
                     __LINE__);
}

}  // namespace fusegrad::kernels
