#include <fusegrad/optim/cpu/flat_pass.h>

namespace fusegrad::kernels {
namespace {

/// The constants of one piece of a step, in the precision of the masters.
template <class T, Momentum kind>
struct SgdUpdate {
  T gradient_factor;
  T weight_decay;
  T learning_rate;
  T momentum;
  T keep;
  T gain;

  SgdUpdate(const SgdStep& args, const SgdScalars& scalars)
      : gradient_factor(static_cast<T>(scalars.gradient_factor)),
        weight_decay(static_cast<T>(args.weight_decay)),
        learning_rate(static_cast<T>(scalars.learning_rate)),
        momentum(static_cast<T>(args.momentum)),
        keep(static_cast<T>(scalars.velocity_keep)),
        gain(static_cast<T>(scalars.velocity_gain)) {}

  /// A function of its own, by value: only so does the compiler believe that nothing aliases, and use vectors.
  static void run(SgdUpdate u, const T* __restrict gradient, T* __restrict p, T* __restrict v, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const T g = u.gradient_factor * gradient[i] + u.weight_decay * p[i];
      if constexpr (kind == Momentum::none) {
        p[i] -= u.learning_rate * g;
      } else {
        v[i] = u.keep * v[i] + u.gain * g;
        p[i] -= u.learning_rate * (kind == Momentum::nesterov ? g + u.momentum * v[i] : v[i]);
      }
    }
  }
};

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
      Update::run(update, gradients + from, masters + from, v, to - from);
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
