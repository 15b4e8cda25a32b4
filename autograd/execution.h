// What a kernel gets to run with: the CPU's threads, or a GPU's stream. Not installed.
#pragma once

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/cpu/thread_pool.h>

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

/// True if this build can have oneDNN multiply on a CPU.
#ifdef FUSEGRAD_WITH_ONEDNN
inline constexpr bool kWithOnednn = true;
#else
inline constexpr bool kWithOnednn = false;
#endif

/// First argument of every CPU kernel.
struct CpuExecution {
  detail::ThreadPool& pool;
  ProductLibrary products = ProductLibrary::eigen;  ///< onednn only if kWithOnednn
};

/// First argument of every function that launches GPU kernels. The stream's device is the current one.
struct CudaExecution {
  CUstream_st* stream;
  detail::CudaState& state;  // autograd/cuda/cuda_state.h: scratch memory, settings, counters, cuBLASLt
};

}  // namespace fusegrad
