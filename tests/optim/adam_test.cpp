#include "tests/optim/given_gradients.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/optim/adam.h>

namespace fusegrad {
namespace {

using namespace fusegrad::test;

struct Trajectory {
  std::vector<double> values;
  std::vector<double> first_moments;
  std::vector<double> second_moments;
};

class AdamTest : public EachDevice {
 protected:
  /// Steps p0 = 1 through gradients 0.5, -1, 0.25 and compares values and moments with the closed form.
  template <class AnyAdam>
  void expect_trajectory(AnyAdam optimizer, const Trajectory& expected) const {
    const std::vector<double> gradients = {0.5, -1, 0.25};
    const Parameter p = optimizer.parameters()["p"];
    const double u = accumulation_roundoff(dtype());
    for (std::size_t t = 0; t < gradients.size(); ++t) {
      give_gradient(p, {gradients[t]});
      optimizer.step();
      const int steps = static_cast<int>(t) + 1;
      EXPECT_NEAR(master_of(p), expected.values[t], steps_bound(dtype(), steps, 0.12, 1)) << steps;
      expect_values_are_rounded_masters(optimizer.parameters());
      const OptimizerState state = optimizer.state();
      ASSERT_EQ(state.parameters[0].moments.size(), 2u);
      EXPECT_NEAR(elements_of(state.parameters[0].moments[0])[0], expected.first_moments[t], steps * 4 * u * 0.06)
          << steps;
      EXPECT_NEAR(elements_of(state.parameters[0].moments[1])[0], expected.second_moments[t], steps * 4 * u * 1.3e-3)
          << steps;
    }
  }

  ParameterSet one(double initial) const { return one_value(dtype(), initial, device_context({.threads = 1})); }

  /// p after steps with the given gradients.
  template <class AnyAdam>
  static double result(AnyAdam optimizer, const std::vector<double>& gradients) {
    const Parameter p = optimizer.parameters()["p"];
    for (const double gradient : gradients) {
      give_gradient(p, {gradient});
      optimizer.step();
    }
    return master_of(p);
  }
};
FUSEGRAD_EACH_DEVICE(AdamTest);

TEST_P(AdamTest, StepsAdam) {
  expect_trajectory(Adam(one(1), {.learning_rate = 0.1}),
                    {{0.90000000199999996, 0.93661035424056560281, 0.95027942033897641752},
                     {0.05, -0.055, -0.0245},
                     {0.00025, 0.00124975, 0.00131100025}});
}

TEST_P(AdamTest, StepsAdamWithCoupledDecay) {
  expect_trajectory(Adam(one(1), {.learning_rate = 0.1, .weight_decay = 0.1}),
                    {{0.90000000166666663889, 0.92526351944560639368, 0.92473057426870958574},
                     {0.06, -0.036999999983333333611, 0.00095263520945606368684},
                     {0.00036, 0.0011877399996966666717, 0.0013038765614734190252}});
}

TEST_P(AdamTest, StepsAdamW) {
  expect_trajectory(AdamW(one(1), {.learning_rate = 0.1, .weight_decay = 0.1}),
                    {{0.89000000199999996, 0.91771035422056560321, 0.92220231677677076189},
                     {0.05, -0.055, -0.0245},
                     {0.00025, 0.00124975, 0.00131100025}});
}

TEST_P(AdamTest, AddsEpsilonAfterTheBiasCorrection) {
  EXPECT_NEAR(result(Adam(one(0), {.learning_rate = 1, .epsilon = 0.1}), {0.5}), -0.83333333333333333333,
              steps_bound(dtype(), 1, 1, 0));
  // eps before the correction would give 3.065e-5, inside the root 1e-7.
  const float small = 1e-8f;
  EXPECT_NEAR(result(Adam(one(0), {.learning_rate = 1e-3, .epsilon = double{small}}), {double{small}}), -5e-4,
              steps_bound(dtype(), 1, 5e-4, 0));
}

TEST_P(AdamTest, FollowsTheClosedFormOfAConstantGradient) {
  Adam optimizer(one(0), {.learning_rate = 0.01});
  const Parameter p = optimizer.parameters()["p"];
  for (int t = 1; t <= 1000; ++t) {
    give_gradient(p, {1});
    optimizer.step();
    ASSERT_NEAR(master_of(p), -t * 0.01 / (1 + 1e-8), steps_bound(dtype(), t, 0.01, t * 0.01)) << t;
  }
  EXPECT_NEAR(master_of(p), -9.999999900000001, steps_bound(dtype(), 1000, 0.01, 10));
}

TEST_P(AdamTest, LeavesAValueAloneWhileItsGradientIsZero) {
  EXPECT_EQ(result(Adam(one(1), {.learning_rate = 0.1}), {0}), 1) << "0 / (0 + eps)";
  EXPECT_EQ(result(Adam(one(1), {.learning_rate = 0.1}), {0, 0}), 1);
  EXPECT_NEAR(result(Adam(one(1), {.learning_rate = 0.1}), {0, 0, 1}), 0.93611864116605284282,
              steps_bound(dtype(), 1, 0.07, 1));
}

TEST_P(AdamTest, CountsStepsPerParameter) {
  ParameterSet set(device_context({.threads = 1}), dtype());
  const Parameter early = set.add("early", {1}, starting_at({1}));
  const Parameter late = set.add("late", {1}, starting_at({1}));
  Adam optimizer(set, {.learning_rate = 0.01});
  give_gradient(early, {0.5});
  optimizer.step();
  give_gradient(early, {0.5});
  give_gradient(late, {0.5});
  optimizer.step();
  // A counter of the whole optimizer would give 0.99255863.
  EXPECT_NEAR(master_of(late), 1 - 0.01 * 0.5 / (0.5 + 1e-8), steps_bound(dtype(), 1, 0.01, 1));
  EXPECT_EQ(optimizer.steps(early), 2);
  EXPECT_EQ(optimizer.steps(late), 1);
}

TEST_P(AdamTest, DecaysCoupledInAdamAndDecoupledInAdamW) {
  const AdamWOptions decoupled{.learning_rate = 0.1, .weight_decay = 0.1};
  EXPECT_NEAR(result(AdamW(one(1), decoupled), {0}), 0.99, steps_bound(dtype(), 1, 0.01, 1));
  const AdamOptions coupled{.learning_rate = 0.1, .weight_decay = 0.1};
  EXPECT_NEAR(result(Adam(one(1), coupled), {0}), 1 - 0.1 * 0.1 / (0.1 + 1e-8), steps_bound(dtype(), 1, 0.1, 1));
}

TEST_P(AdamTest, CorrectsTheBiasByDefault) {
  ParameterSet set(device_context({.threads = 1}), dtype());
  const Parameter p = set.add("p", {4}, starting_at({1, 1, 1, 1}));
  AdamW optimizer(set, {.learning_rate = 0.1, .weight_decay = 0});
  for (int t = 1; t <= 3; ++t) {
    give_gradient(p, {1, 1, 1, 1});
    optimizer.step();
    for (const double value : elements_of(p.master())) {
      EXPECT_NEAR(value, 1 - t * 0.1 / (1 + 1e-8), steps_bound(dtype(), t, 0.1, 1));
    }
  }
}

TEST_P(AdamTest, HandlesBetasAtTheEdges) {
  for (const double beta : {0.0, 0.25, 0.4999, 0.5, 0.9999999}) {
    // After two steps: m = beta1 (1 - beta1) g1 + (1 - beta1) g2, and so for v.
    const AdamOptions options{.learning_rate = 0.1, .beta1 = beta, .beta2 = beta};
    const double m = (beta * 2 + 3) / (1 + beta);  // divided by 1 - beta^2
    const double v = (beta * 4 + 9) / (1 + beta);
    const double update = 0.1 * m / (std::sqrt(v) + 1e-8);
    const double first = 0.1 / (1 + 0.5e-8);
    EXPECT_NEAR(result(Adam(one(0), options), {2, 3}), -(first + update), steps_bound(dtype(), 2, 0.1, 0.2) * 2)
        << beta;
  }
  // A large past must not swallow a small gradient where beta forgets it at once.
  EXPECT_NEAR(result(Adam(one(0), {.learning_rate = 0.1, .beta1 = 0, .beta2 = 0}), {1e6, 1e-3}),
              -0.1 / (1 + 1e-14) - 0.1 * 1e-3 / (1e-3 + 1e-8), steps_bound(dtype(), 2, 0.1, 0.2));
}

/// Adam and AdamW against fp64 for a thousand steps of random gradients.
TEST_P(AdamTest, FollowsAReferenceForAThousandSteps) {
  constexpr std::int64_t kSize = 67;
  constexpr int kSteps = 1000;
  constexpr double kRate = 0.01;
  constexpr double kDecay = 0.05;
  for (const bool coupled : {false, true}) {
    ParameterSet set(device_context({.threads = 2}), dtype());
    const Parameter p = set.add("p", {kSize}, starting_at(random_values(kSize, 1, 0)));
    Optimizer optimizer = coupled ? Optimizer(Adam(set, {.learning_rate = kRate, .weight_decay = kDecay}))
                                  : Optimizer(AdamW(set, {.learning_rate = kRate, .weight_decay = kDecay}));
    std::vector<double> reference = elements_of(p.master());
    std::vector<double> m(reference.size());
    std::vector<double> v(reference.size());
    for (int t = 1; t <= kSteps; ++t) {
      // Most of the signal is a constant, so that updates stay large and drift would show.
      std::vector<double> gradient = random_values(kSize, 2, static_cast<std::uint64_t>(t));
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        gradient[i] = static_cast<float>(gradient[i] + (i % 2 ? 1.0 : -1.0) * std::exp2(i % 30 - 15.0));
      }
      give_gradient(p, gradient);
      optimizer.step();
      for (std::size_t i = 0; i < reference.size(); ++i) {
        const double g = gradient[i] + (coupled ? kDecay * reference[i] : 0);
        m[i] = 0.9 * m[i] + 0.1 * g;
        v[i] = 0.999 * v[i] + 0.001 * g * g;
        if (!coupled) reference[i] *= 1 - kRate * kDecay;
        reference[i] -= kRate * (m[i] / (1 - std::pow(0.9, t))) / (std::sqrt(v[i] / (1 - std::pow(0.999, t))) + 1e-8);
      }
      expect_values_are_rounded_masters(set);
    }
    const std::vector<double> result = elements_of(p.master());
    for (std::size_t i = 0; i < result.size(); ++i) {
      EXPECT_NEAR(result[i], reference[i], steps_bound(dtype(), kSteps, kRate, std::fabs(reference[i]) + 1))
          << "element " << i;
    }
    // Rounding may scatter the second moments but must not shift them: with beta2 and 1 - beta2 rounded on their own
    // they come out too large by 90 u on average.
    const OptimizerState state = optimizer.state();
    const std::vector<double> second = elements_of(state.parameters[0].moments[1]);
    double shift = 0;
    for (std::size_t i = 0; i < second.size(); ++i) shift += (second[i] - v[i]) / v[i] / kSize;
    EXPECT_LT(std::fabs(shift), 20 * accumulation_roundoff(dtype()));
  }
}

TEST(AdamOptionsTest, OptionsOutOfRangeAreRefused) {
  const ParameterSet set = one_value(Dtype::f32, 1);
  const double nan = NAN;
  const double infinity = INFINITY;
  for (const double bad : {-1.0, nan, infinity}) {
    EXPECT_THROW(Adam(set, {.learning_rate = bad}), ValueError) << bad;
    EXPECT_THROW(Adam(set, {.beta1 = bad}), ValueError) << bad;
    EXPECT_THROW(Adam(set, {.beta2 = bad}), ValueError) << bad;
    EXPECT_THROW(Adam(set, {.epsilon = bad}), ValueError) << bad;
    EXPECT_THROW(AdamW(set, {.weight_decay = bad}), ValueError) << bad;
  }
  EXPECT_THROW(Adam(set, {.beta1 = 1}), ValueError);
  EXPECT_THROW(AdamW(set, {.beta2 = 1}), ValueError);
  EXPECT_THROW(Adam(set, {.epsilon = 0}), ValueError);
  EXPECT_THROW(Adam(set, {.epsilon = 1e-40}), ValueError) << "subnormal in fp32";
  EXPECT_NO_THROW(Adam(one_value(Dtype::f64, 1), {.epsilon = 1e-40}));
  EXPECT_NO_THROW(Adam(set, {.learning_rate = 0, .beta1 = 0, .beta2 = 0}));
}

TEST(AdamOptionsTest, MessagesNameTheOptimizerAndTheOption) {
  const ParameterSet set = one_value(Dtype::bf16, 1);
  try {
    AdamW optimizer(set, {.beta2 = 1.5});
    FAIL() << "beta2 = 1.5 was accepted";
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "adamw: beta2 must be in [0, 1), got 1.5");
  }
}

}  // namespace
}  // namespace fusegrad
