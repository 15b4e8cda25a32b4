// The first slot with an infinity or a NaN: one reduction over the gradients, bound by reading them.
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/ops/cuda/last_block.cuh>
#include <fusegrad/optim/cuda/flat_step.cuh>

namespace fusegrad::kernels {
namespace {

/// Slots without scalars.
struct Nothing {};

__device__ bool is_nonfinite(float value) { return (__float_as_uint(value) & 0x7f800000u) == 0x7f800000u; }
__device__ bool is_nonfinite(double value) {
  return (static_cast<unsigned>(__double2hiint(value)) & 0x7ff00000u) == 0x7ff00000u;
}

/// Words that are 0 before and after.
struct NonfiniteWords {
  unsigned* ticket;
  unsigned* found;
};

/// *result = number of slots from the first bad one on, 0 if there is none.
template <class T, int kCapacity>
__global__ void __launch_bounds__(kFlatThreads)
    nonfinite_kernel(const __grid_constant__ SlotList<Nothing, kCapacity> list, const T* gradients, bool vectors,
                     NonfiniteWords words, unsigned* result) {
  list.for_each_run([&](int slot, std::int64_t first, int count) {
    const auto run = Run<T>::load(gradients + first, count, vectors);
    bool bad = false;
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) bad |= is_nonfinite(run.elements[i]);
    if (bad) atomicMax(words.found, static_cast<unsigned>(list.count - slot));
  });
  if (!is_last_block(words.ticket, gridDim.x) || threadIdx.x != 0) return;
  *result = *words.found;
  *words.found = 0;
}

template <class T>
std::int64_t first_nonfinite_of(const CudaExecution& execution, const T* gradients, std::span<const FlatSlot> slots) {
  unsigned* result = execution.state.result();
  const NonfiniteWords words{execution.state.tickets(), execution.state.tickets() + 1};
  std::int64_t bad_slot = -1;
  for_each_list<Nothing>(slots, {}, [&]<int kCapacity>(const SlotList<Nothing, kCapacity>& list, std::int64_t first) {
    if (bad_slot >= 0 || list.tiles == 0) return;
    launch(execution, "first_nonfinite", nonfinite_kernel<T, kCapacity>, list.grid(), kFlatThreads, list, gradients,
           aligned(gradients), words, result);
    unsigned from_end = 0;
    execution.state.backend().copy_to_host(&from_end, result, sizeof from_end);
    if (from_end > 0) bad_slot = first + list.count - from_end;
  });
  return bad_slot;
}

}  // namespace

std::int64_t first_nonfinite(const CudaExecution& execution, ConstVector gradients, std::span<const FlatSlot> slots) {
  if (gradients.dtype == Dtype::f64) {
    return first_nonfinite_of(execution, static_cast<const double*>(gradients.data), slots);
  }
  return first_nonfinite_of(execution, static_cast<const float*>(gradients.data), slots);
}

}  // namespace fusegrad::kernels
