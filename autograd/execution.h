// What a kernel gets to run with: the CPU's threads, or a GPU's stream. Not installed.
#pragma once

#include <fusegrad/autograd/cpu/thread_pool.h>

namespace fusegrad {

/// First argument of every CPU kernel.
struct CpuExecution {
  detail::ThreadPool& pool;
};

}  // namespace fusegrad
