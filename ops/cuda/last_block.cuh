// How the blocks of one kernel hand their partial results to the one that finishes. Not installed.
#pragma once

namespace fusegrad::kernels {

/// True for all threads of the block that comes here last of `blocks`; it can read what the others wrote before they
/// came. `ticket` is 0 before and after. Called by all threads.
__device__ inline bool is_last_block(unsigned* ticket, unsigned blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    // Counts up to blocks - 1 and then to 0. Release and acquire of one thread stand for its block, because of the
    // barriers around it; __threadfence() would be a costlier sequentially consistent fence.
    unsigned drawn;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                 : "=r"(drawn)
                 : "l"(__cvta_generic_to_global(ticket)), "r"(blocks - 1)
                 : "memory");
    last = drawn == blocks - 1;
  }
  __syncthreads();
  return last;
}

}  // namespace fusegrad::kernels
