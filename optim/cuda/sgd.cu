// SGD over flat buffers: one pass, bound by memory (SgdStep says how many bytes).
#include <fusegrad/optim/cuda/flat_step.cuh>
#include <fusegrad/optim/update_functions.h>

namespace fusegrad::kernels {
namespace {

template <class T, Momentum kind, int kCapacity>
__global__ void __launch_bounds__(kFlatThreads)
    sgd_kernel(const __grid_constant__ SlotList<SgdScalars, kCapacity> list, SgdStep args,
               const SgdScalars* device_scalars, bool vectors, const detail::DeviceFault* fault) {
  if (fault->text != 0) return;
  const FlatParameters& flat = args.parameters;
  list.for_each_run([&](int slot, std::int64_t first, int count) {
    const SgdUpdate<T, kind> update(args, device_scalars ? device_scalars[slot] : list.scalars[slot]);
    const auto gradient = Run<T>::load(static_cast<const T*>(flat.gradients.data) + first, count, vectors);
    T* masters = static_cast<T*>(flat.masters.data) + first;
    T* velocity = static_cast<T*>(args.velocity.data) + first;
    auto p = Run<T>::load(masters, count, vectors);
    Run<T> v = {};
    if constexpr (kind != Momentum::none) v = Run<T>::load(velocity, count, vectors);
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) update(gradient.elements[i], p.elements[i], v.elements[i]);
    p.store(masters, count, vectors);
    if constexpr (kind != Momentum::none) v.store(velocity, count, vectors);
    store_values(flat.values, first, p, count, vectors);
  });
}

template <class T, Momentum kind>
void sgd(const CudaExecution& execution, const SgdStep& args) {
  const FlatParameters& flat = args.parameters;
  const bool vectors = aligned(flat.gradients.data) && aligned(flat.masters.data) && aligned(flat.values.data) &&
                       aligned(args.velocity.data);
  for_each_list(flat.slots, args.scalars,
                [&]<int kCapacity>(const SlotList<SgdScalars, kCapacity>& list, std::int64_t first) {
                  const SgdScalars* device_scalars = args.device_scalars ? args.device_scalars + first : nullptr;
                  launch(execution, "sgd_step", sgd_kernel<T, kind, kCapacity>, list.grid(), kFlatThreads, list, args,
                         device_scalars, vectors, execution.state.fault());
                });
}

__global__ void advance_sgd_kernel(AdvanceSgd args, const detail::DeviceFault* fault) {
  const std::int64_t slot = std::int64_t{blockIdx.x} * kFlatThreads + threadIdx.x;
  const DeviceProgress& progress = args.progress;
  if (slot >= progress.slots || fault->text != 0) return;
  const std::int64_t t = ++progress.steps[slot];
  args.scalars[slot] =
      sgd_scalars(*progress.learning_rate, t, *progress.gradient_factor, args.momentum, args.dampening);
}

}  // namespace

void sgd_step(const CudaExecution& execution, const SgdStep& args) {
  visit_master(args.parameters.masters.dtype, [&]<class T>() {
    switch (args.kind) {
      case Momentum::none: return sgd<T, Momentum::none>(execution, args);
      case Momentum::classic: return sgd<T, Momentum::classic>(execution, args);
      case Momentum::nesterov: return sgd<T, Momentum::nesterov>(execution, args);
    }
  });
}

void advance_sgd(const CudaExecution& execution, const AdvanceSgd& args) {
  launch(execution, "advance_sgd", advance_sgd_kernel, slot_grid(args.progress.slots), kFlatThreads, args,
         execution.state.fault());
}

}  // namespace fusegrad::kernels
