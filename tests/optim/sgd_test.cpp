#include "tests/optim/given_gradients.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/optim/sgd.h>

namespace fusegrad {
namespace {

using namespace fusegrad::test;

const std::vector<double> kGradients = {0.5, -1, 0.25};

class SgdTest : public EachDevice {
 protected:
  /// Steps p0 = 1 through kGradients; compares with the closed form, and the velocity where `velocities` names any.
  void expect_trajectory(const SgdOptions& options, const std::vector<double>& values,
                         const std::vector<double>& velocities = {}) const {
    const ParameterSet set = one_value(dtype(), 1, device_context({.threads = 1}));
    Sgd optimizer(set, options);
    for (std::size_t t = 0; t < kGradients.size(); ++t) {
      give_gradient(set["p"], {kGradients[t]});
      optimizer.step();
      const double bound = steps_bound(dtype(), static_cast<int>(t) + 1, 0.15, 1.1);
      EXPECT_NEAR(master_of(set["p"]), values[t], bound) << "after step " << t + 1;
      expect_values_are_rounded_masters(set);
      const OptimizerState state = optimizer.state();
      EXPECT_EQ(state.parameters[0].steps, static_cast<std::int64_t>(t) + 1);
      ASSERT_EQ(state.parameters[0].moments.size(), velocities.empty() ? 0u : 1u);
      if (velocities.empty()) continue;
      EXPECT_NEAR(elements_of(state.parameters[0].moments[0])[0], velocities[t], bound) << "after step " << t + 1;
    }
  }
};
FUSEGRAD_EACH_DEVICE(SgdTest);

TEST_P(SgdTest, StepsPlainly) { expect_trajectory({.learning_rate = 0.1}, {0.95, 1.05, 1.025}); }

TEST_P(SgdTest, StepsWithMomentum) {
  expect_trajectory({.learning_rate = 0.1, .momentum = 0.9}, {0.95, 1.005, 1.0295}, {0.5, -0.55, -0.245});
}

TEST_P(SgdTest, StepsWithNesterovMomentum) {
  expect_trajectory({.learning_rate = 0.1, .momentum = 0.9, .nesterov = true}, {0.905, 1.0545, 1.05155},
                    {0.5, -0.55, -0.245});
}

TEST_P(SgdTest, AddsWeightDecayToTheGradient) {
  expect_trajectory({.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01}, {0.949, 1.002151, 1.023984749},
                    {0.51, -0.53151, -0.21833749});
}

TEST_P(SgdTest, DampensAllButTheFirstStep) {
  expect_trajectory({.learning_rate = 0.1, .momentum = 0.9, .dampening = 0.5}, {0.95, 0.955, 0.947},
                    {0.5, -0.05, 0.08});
}

TEST_P(SgdTest, DampensNotTheFirstStepOfALateParameter) {
  ParameterSet set(device_context({.threads = 1}), dtype());
  const Parameter early = set.add("early", {1}, starting_at({1}));
  const Parameter late = set.add("late", {1}, starting_at({1}));
  Sgd optimizer(set, {.learning_rate = 0.5, .momentum = 0.5, .dampening = 0.5});
  give_gradient(early, {1});
  optimizer.step();
  EXPECT_EQ(master_of(late), 1);
  give_gradient(early, {1});
  give_gradient(late, {1});
  optimizer.step();
  EXPECT_EQ(master_of(late), 0.5) << "v = g, not g / 2";
  EXPECT_EQ(master_of(early), 0) << "v = 1 / 2 + 1 / 2";
}

TEST_P(SgdTest, FollowsAReferenceForAThousandSteps) {
  constexpr std::int64_t kSize = 67;
  constexpr int kSteps = 1000;
  for (const bool nesterov : {false, true}) {
    ParameterSet set(device_context({.threads = 2}), dtype());
    const Parameter p = set.add("p", {kSize}, starting_at(random_values(kSize, 1, 0)));
    const SgdOptions options{.learning_rate = 0.01, .momentum = 0.9, .nesterov = nesterov, .weight_decay = 0.02};
    Sgd optimizer(set, options);
    std::vector<double> reference = elements_of(p.master());
    std::vector<double> velocity(reference.size());
    for (int t = 0; t < kSteps; ++t) {
      const std::vector<double> gradient = random_values(kSize, 2, static_cast<std::uint64_t>(t));
      give_gradient(p, gradient);
      optimizer.step();
      for (std::size_t i = 0; i < reference.size(); ++i) {
        const double g = gradient[i] + options.weight_decay * reference[i];
        velocity[i] = t == 0 ? g : options.momentum * velocity[i] + g;
        reference[i] -= options.learning_rate * (nesterov ? g + options.momentum * velocity[i] : velocity[i]);
      }
    }
    const std::vector<double> result = elements_of(p.master());
    for (std::size_t i = 0; i < result.size(); ++i) {
      EXPECT_NEAR(result[i], reference[i], steps_bound(dtype(), kSteps, 0.1, 1)) << "element " << i;
    }
    expect_values_are_rounded_masters(set);
  }
}

TEST(SgdOptionsTest, OptionsOutOfRangeAreRefused) {
  const ParameterSet set = one_value(Dtype::f32, 1);
  const double nan = NAN;
  for (const double bad : {-1.0, nan, static_cast<double>(INFINITY)}) {
    EXPECT_THROW(Sgd(set, {.learning_rate = bad}), ValueError) << bad;
    EXPECT_THROW(Sgd(set, {.momentum = bad}), ValueError) << bad;
    EXPECT_THROW(Sgd(set, {.weight_decay = bad}), ValueError) << bad;
  }
  EXPECT_THROW(Sgd(set, {.momentum = 0.9, .dampening = nan}), ValueError);
  EXPECT_THROW(Sgd(set, {.nesterov = true}), ValueError) << "nesterov needs momentum";
  EXPECT_THROW(Sgd(set, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}), ValueError);
  EXPECT_NO_THROW(Sgd(set, {.learning_rate = 0}));
}

}  // namespace
}  // namespace fusegrad
