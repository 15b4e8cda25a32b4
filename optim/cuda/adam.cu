// Adam and AdamW over flat buffers: one pass, bound by memory (AdamStep says how many bytes).
#include <fusegrad/optim/cuda/flat_step.cuh>
#include <fusegrad/optim/update_functions.h>

namespace fusegrad::kernels {
namespace {

template <class T, bool small_beta1, bool small_beta2, int kCapacity>
__global__ void __launch_bounds__(kFlatThreads)
    adam_kernel(const __grid_constant__ SlotList<AdamScalars, kCapacity> list, AdamStep args,
                const AdamScalars* device_scalars, bool vectors, const detail::DeviceFault* fault) {
  if (fault->text != 0) return;
  const FlatParameters& flat = args.parameters;
  list.for_each_run([&](int slot, std::int64_t first, int count) {
    const AdamUpdate<T, small_beta1, small_beta2> update(args,
                                                         device_scalars ? device_scalars[slot] : list.scalars[slot]);
    T* masters = static_cast<T*>(flat.masters.data) + first;
    T* first_moment = static_cast<T*>(args.m.data) + first;
    T* second_moment = static_cast<T*>(args.v.data) + first;
    const auto gradient = Run<T>::load(static_cast<const T*>(flat.gradients.data) + first, count, vectors);
    auto p = Run<T>::load(masters, count, vectors);
    auto m = Run<T>::load(first_moment, count, vectors);
    auto v = Run<T>::load(second_moment, count, vectors);
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) {
      update(gradient.elements[i], p.elements[i], m.elements[i], v.elements[i]);
    }
    p.store(masters, count, vectors);
    m.store(first_moment, count, vectors);
    v.store(second_moment, count, vectors);
    store_values(flat.values, first, p, count, vectors);
  });
}

template <class T, bool small_beta1, bool small_beta2>
void adam(const CudaExecution& execution, const AdamStep& args) {
  const FlatParameters& flat = args.parameters;
  const bool vectors = aligned(flat.gradients.data) && aligned(flat.masters.data) && aligned(flat.values.data) &&
                       aligned(args.m.data) && aligned(args.v.data);
  for_each_list(flat.slots, args.scalars,
                [&]<int kCapacity>(const SlotList<AdamScalars, kCapacity>& list, std::int64_t first) {
                  const AdamScalars* device_scalars = args.device_scalars ? args.device_scalars + first : nullptr;
                  launch(execution, "adam_step", adam_kernel<T, small_beta1, small_beta2, kCapacity>, list.grid(),
                         kFlatThreads, list, args, device_scalars, vectors, execution.state.fault());
                });
}

__global__ void advance_adam_kernel(AdvanceAdam args, const detail::DeviceFault* fault) {
  const std::int64_t slot = std::int64_t{blockIdx.x} * kFlatThreads + threadIdx.x;
  const DeviceProgress& progress = args.progress;
  if (slot >= progress.slots || fault->text != 0) return;
  const std::int64_t t = ++progress.steps[slot];
  args.scalars[slot] =
      adam_scalars(*progress.learning_rate, t, *progress.gradient_factor, args.beta1, args.beta2, args.decoupled_decay);
}

}  // namespace

void adam_step(const CudaExecution& execution, const AdamStep& args) {
  visit_master(args.parameters.masters.dtype, [&]<class T>() {
    const bool small_beta1 = args.beta1 < 0.5;
    const bool small_beta2 = args.beta2 < 0.5;
    if (small_beta1) {
      small_beta2 ? adam<T, true, true>(execution, args) : adam<T, true, false>(execution, args);
    } else {
      small_beta2 ? adam<T, false, true>(execution, args) : adam<T, false, false>(execution, args);
    }
  });
}

void advance_adam(const CudaExecution& execution, const AdvanceAdam& args) {
  launch(execution, "advance_adam", advance_adam_kernel, slot_grid(args.progress.slots), kFlatThreads, args,
         execution.state.fault());
}

}  // namespace fusegrad::kernels
