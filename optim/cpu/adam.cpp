// The moments are kept as moving averages in the form
//
//   m += (1 - beta) (g - m)       where beta >= 1/2
//   m  = beta m + (1 - beta) g    else
//
// In fp32, beta and 1 - beta rounded on their own do not add to 1: for beta2 = 0.999 the sum is off by 1.3e-8, and the
// average of a steady g² would come out 1.3e-5 too large. The first form has g as its fixed point whatever the rounding
// of 1 - beta; for small betas it would cancel, and there the second form is as good.
#include <cmath>

#include <fusegrad/optim/cpu/flat_pass.h>

namespace fusegrad::kernels {
namespace {

/// A moving average of the gradient or of its square, with a rate fixed for the whole pass.
template <class T, bool small_beta>
struct MovingAverage {
  T beta;
  T gain;

  explicit MovingAverage(double decay) : beta(static_cast<T>(decay)), gain(static_cast<T>(1 - decay)) {}
  T operator()(T average, T sample) const {
    return small_beta ? beta * average + gain * sample : average + gain * (sample - average);
  }
};

/// The constants of one piece of a step, in the precision of the masters.
template <class T, bool small_beta1, bool small_beta2>
struct AdamUpdate {
  MovingAverage<T, small_beta1> average1;
  MovingAverage<T, small_beta2> average2;
  T gradient_factor;
  T coupled_decay;
  T decay;
  T step_size;
  T root_factor;
  T epsilon;

  AdamUpdate(const AdamStep& args, const AdamScalars& scalars)
      : average1(args.beta1),
        average2(args.beta2),
        gradient_factor(static_cast<T>(scalars.gradient_factor)),
        coupled_decay(static_cast<T>(args.coupled_decay)),
        decay(static_cast<T>(scalars.decay)),
        step_size(static_cast<T>(scalars.step_size)),
        root_factor(static_cast<T>(scalars.root_factor)),
        epsilon(static_cast<T>(args.epsilon)) {}

  /// A function of its own, by value: only so does the compiler believe that nothing aliases, and use vectors.
  static void run(AdamUpdate u, const T* __restrict gradient, T* __restrict p, T* __restrict m, T* __restrict v,
                  std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const T g = u.gradient_factor * gradient[i] + u.coupled_decay * p[i];
      m[i] = u.average1(m[i], g);
      v[i] = u.average2(v[i], g * g);
      p[i] -= u.decay * p[i] + u.step_size * m[i] / (u.root_factor * std::sqrt(v[i]) + u.epsilon);
    }
  }
};

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
      Update::run(update, gradients + from, masters + from, m + from, v + from, to - from);
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
