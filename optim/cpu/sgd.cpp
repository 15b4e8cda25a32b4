#include <fusegrad/optim/cpu/flat_pass.h>
#include <fusegrad/optim/update_functions.h>

namespace fusegrad::kernels {
namespace {

/// A function of its own, `update` by value: only so does the compiler believe that nothing aliases, and use vectors.
template <class T, Momentum kind>
void run(SgdUpdate<T, kind> update, const T* __restrict gradient, T* __restrict p, T* __restrict v,
         std::int64_t count) {
  T none = 0;
  for (std::int64_t i = 0; i < count; ++i) update(gradient[i], p[i], kind == Momentum::none ? none : v[i]);
}

template <class T, Momentum kind>
void sgd(const CpuExecution& execution, const SgdStep& args) {
  using Update = SgdUpdate<T, kind>;
  const auto* gradients = static_cast<const T*>(args.parameters.gradients.data);
  auto* masters = static_cast<T*>(args.parameters.masters.data);
  auto* velocity = static_cast<T*>(args.velocity.data);
  for_each_piece(execution, args.parameters.slots, [&](std::int64_t slot, std::int64_t begin, std::int64_t end) {
    const Update update(args, args.scalars[static_cast<std::size_t>(slot)]);
    update_and_round<T>(args.parameters, begin, end, [&](std::int64_t from, std::int64_t to) {
      T* v = kind == Momentum::none ? nullptr : velocity + from;
      run(update, gradients + from, masters + from, v, to - from);
    });
  });
}

}  // namespace

void sgd_step(const CpuExecution& execution, const SgdStep& args) {
  visit_master(args.parameters.masters.dtype, [&]<class T>() {
    switch (args.kind) {
      case Momentum::none: return sgd<T, Momentum::none>(execution, args);
      case Momentum::classic: return sgd<T, Momentum::classic>(execution, args);
      case Momentum::nesterov: return sgd<T, Momentum::nesterov>(execution, args);
    }
  });
}

}  // namespace fusegrad::kernels
