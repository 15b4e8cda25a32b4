// What a kernel gets to run with: the CPU's threads, or a GPU's stream. Not installed.
#pragma once

#include <fusegrad/autograd/cpu/thread_pool.h>

struct CUstream_st;

namespace fusegrad {

namespace detail {
class CudaState;
}

/// True if this build has the GPU backend.
#ifdef FUSEGRAD_WITH_CUDA
inline constexpr bool kWithCuda = true;
#else
inline constexpr bool kWithCuda = false;
#endif

/// First argument of every CPU kernel.
struct CpuExecution {
  detail::ThreadPool& pool;
};

/// First argument of every function that launches GPU kernels. The stream's device is the current one.
struct CudaExecution {
  CUstream_st* stream;
  detail::CudaState& state;  // autograd/cuda/cuda_state.h: scratch memory, settings, counters, cuBLASLt
};

}  // namespace fusegrad
