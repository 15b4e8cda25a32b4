// What an optimizer does to one element, and what of it depends on the step: one definition for every backend, so that
// they give the same bits. Not installed.
#pragma once

#include <cmath>
#include <cstdint>

#include <fusegrad/autograd/host_device.h>
#include <fusegrad/optim/optimizer_kernels.h>

namespace fusegrad::kernels {

/// 1 - beta^t without the cancellation of the plain form; exact enough for every t in double, hopeless in float.
FUSEGRAD_HOST_DEVICE inline double one_minus_power(double beta, std::int64_t t) {
  return -std::expm1(static_cast<double>(t) * std::log(beta));
}

/// Of a parameter's update number t, 1 for the first. PyTorch's rule: the first velocity is the gradient itself.
FUSEGRAD_HOST_DEVICE inline SgdScalars sgd_scalars(double learning_rate, std::int64_t t, double gradient_factor,
                                                   double momentum, double dampening) {
  const bool first = t == 1;
  return {gradient_factor, learning_rate, first ? 0 : momentum, first ? 1 : 1 - dampening};
}

/// Of a parameter's update number t, 1 for the first. `decoupled_decay` is AdamW's, 0 for Adam.
FUSEGRAD_HOST_DEVICE inline AdamScalars adam_scalars(double learning_rate, std::int64_t t, double gradient_factor,
                                                     double beta1, double beta2, double decoupled_decay) {
  return {gradient_factor, learning_rate / one_minus_power(beta1, t), 1 / std::sqrt(one_minus_power(beta2, t)),
          learning_rate * decoupled_decay};
}

/// SgdStep for one element; the constants are those of one slot, in the precision of the masters.
template <class T, Momentum kind>
struct SgdUpdate {
  T gradient_factor;
  T weight_decay;
  T learning_rate;
  T momentum;
  T keep;
  T gain;

  FUSEGRAD_HOST_DEVICE SgdUpdate(const SgdStep& args, const SgdScalars& scalars)
      : gradient_factor(static_cast<T>(scalars.gradient_factor)),
        weight_decay(static_cast<T>(args.weight_decay)),
        learning_rate(static_cast<T>(scalars.learning_rate)),
        momentum(static_cast<T>(args.momentum)),
        keep(static_cast<T>(scalars.velocity_keep)),
        gain(static_cast<T>(scalars.velocity_gain)) {}

  FUSEGRAD_HOST_DEVICE void operator()(T gradient, T& p, T& v) const {
    const T g = gradient_factor * gradient + weight_decay * p;
    if constexpr (kind == Momentum::none) {
      p -= learning_rate * g;
    } else {
      v = keep * v + gain * g;
      p -= learning_rate * (kind == Momentum::nesterov ? g + momentum * v : v);
    }
  }
};

/// A moving average with a rate fixed for the whole step, in the form
///
///   average += (1 - beta) (sample - average)        where beta >= 1/2
///   average  = beta average + (1 - beta) sample     else
///
/// In fp32, beta and 1 - beta rounded on their own do not add to 1: for 0.999 the sum is off by 1.3e-8, and the average
/// of a steady sample would come out 1.3e-5 too large. The first form has the sample as its fixed point whatever the
/// rounding of 1 - beta; for small betas it would cancel, and there the second form is as good.
template <class T, bool small_beta>
struct MovingAverage {
  T beta;
  T gain;

  FUSEGRAD_HOST_DEVICE explicit MovingAverage(double decay)
      : beta(static_cast<T>(decay)), gain(static_cast<T>(1 - decay)) {}
  FUSEGRAD_HOST_DEVICE T operator()(T average, T sample) const {
    return small_beta ? beta * average + gain * sample : average + gain * (sample - average);
  }
};

/// AdamStep for one element, as SgdUpdate.
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

  FUSEGRAD_HOST_DEVICE AdamUpdate(const AdamStep& args, const AdamScalars& scalars)
      : average1(args.beta1),
        average2(args.beta2),
        gradient_factor(static_cast<T>(scalars.gradient_factor)),
        coupled_decay(static_cast<T>(args.coupled_decay)),
        decay(static_cast<T>(scalars.decay)),
        step_size(static_cast<T>(scalars.step_size)),
        root_factor(static_cast<T>(scalars.root_factor)),
        epsilon(static_cast<T>(args.epsilon)) {}

  FUSEGRAD_HOST_DEVICE void operator()(T gradient, T& p, T& m, T& v) const {
    const T g = gradient_factor * gradient + coupled_decay * p;
    m = average1(m, g);
    v = average2(v, g * g);
    p -= decay * p + step_size * m / (root_factor * std::sqrt(v) + epsilon);
  }
};

}  // namespace fusegrad::kernels
