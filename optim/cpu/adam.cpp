#include <fusegrad/optim/cpu/flat_pass.h>
#include <fusegrad/optim/update_functions.h>

namespace fusegrad::kernels {
namespace {

/// A function of its own, `update` by value: only so does the compiler believe that nothing aliases, and use vectors.
template <class T, class Update>
void run(Update update, const T* __restrict gradient, T* __restrict p, T* __restrict m, T* __restrict v,
         std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) update(gradient[i], p[i], m[i], v[i]);
}

template <class T, bool small_beta1, bool small_beta2>
void adam(const CpuExecution& execution, const AdamStep& args) {
  using Update = AdamUpdate<T, small_beta1, small_beta2>;
  const auto* gradients = static_cast<const T*>(args.parameters.gradients.data);
  auto* masters = static_cast<T*>(args.parameters.masters.data);
  auto* m = static_cast<T*>(args.m.data);
  auto* v = static_cast<T*>(args.v.data);
  for_each_piece(execution, args.parameters.slots, [&](std::int64_t slot, std::int64_t begin, std::int64_t end) {
    const Update update(args, args.scalars[static_cast<std::size_t>(slot)]);
    update_and_round<T>(args.parameters, begin, end, [&](std::int64_t from, std::int64_t to) {
      run<T>(update, gradients + from, masters + from, m + from, v + from, to - from);
    });
  });
}

}  // namespace

void adam_step(const CpuExecution& execution, const AdamStep& args) {
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

}  // namespace fusegrad::kernels
