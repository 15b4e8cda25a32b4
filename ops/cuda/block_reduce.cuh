// Sums and maxima over the threads of a warp or a block, in a fixed order. Not installed.
#pragma once

#include <cmath>

namespace fusegrad::kernels {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr int kWarpSize = 32;

/// The sum of all lanes' values, for every lane, as a balanced tree. Called by all lanes of a warp.
template <class T>
__device__ T warp_sum(T value) {
#pragma unroll
  for (int step = kWarpSize / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

/// The largest of all lanes' values, for every lane; a NaN counts as absent. Called by all lanes of a warp.
template <class T>
__device__ T warp_max(T value) {
#pragma unroll
  for (int step = kWarpSize / 2; step > 0; step /= 2) value = fmax(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

/// f folded over the values of the first lanes of a block's warps, for every thread. Called by all threads.
template <int kThreads, class T, class F>
__device__ T across_warps(T value, const F& f) {
  __shared__ T warps[kThreads / kWarpSize];
  __syncthreads();  // the former result has been read
  if (threadIdx.x % kWarpSize == 0) warps[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  T result = warps[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / kWarpSize; ++warp) result = f(result, warps[warp]);
  return result;
}

/// As warp_sum, over a block of kThreads. Called by all threads.
template <int kThreads, class T>
__device__ T block_sum(T value) {
  return across_warps<kThreads>(warp_sum(value), [](T a, T b) { return a + b; });
}

/// As warp_max, over a block of kThreads. Called by all threads.
template <int kThreads, class T>
__device__ T block_max(T value) {
  return across_warps<kThreads>(warp_max(value), [](T a, T b) { return fmax(a, b); });
}

}  // namespace fusegrad::kernels
