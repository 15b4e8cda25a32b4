#include <limits>
#include <utility>

#include <fmt/format.h>

#include "tests/optim/given_gradients.h"
#include "tests/support/allocations.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/op.h>
#include <fusegrad/optim/adam.h>
#include <fusegrad/optim/sgd.h>

namespace fusegrad {
namespace {

using namespace fusegrad::test;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

enum class Kind { sgd, momentum, nesterov, adam, adamw };
constexpr Kind kKinds[] = {Kind::sgd, Kind::momentum, Kind::nesterov, Kind::adam, Kind::adamw};

std::string_view name_of(Kind kind) {
  constexpr std::string_view kNames[] = {"sgd", "momentum", "nesterov", "adam", "adamw"};
  return kNames[static_cast<std::size_t>(kind)];
}

Optimizer make_optimizer(Kind kind, const ParameterSet& set, std::optional<bool> skip_nonfinite = std::nullopt) {
  switch (kind) {
    case Kind::sgd: return Sgd(set, {.learning_rate = 0.1, .weight_decay = 0.01, .skip_nonfinite = skip_nonfinite});
    case Kind::momentum:
      return Sgd(set, {.learning_rate = 0.1, .momentum = 0.9, .dampening = 0.1, .skip_nonfinite = skip_nonfinite});
    case Kind::nesterov:
      return Sgd(set, {.learning_rate = 0.1, .momentum = 0.9, .nesterov = true, .skip_nonfinite = skip_nonfinite});
    case Kind::adam: return Adam(set, {.learning_rate = 0.1, .weight_decay = 0.01, .skip_nonfinite = skip_nonfinite});
    case Kind::adamw: return AdamW(set, {.learning_rate = 0.1, .skip_nonfinite = skip_nonfinite});
  }
  throw ValueError("no such kind");
}

/// Everything that a step may change, to the last bit.
struct Snapshot {
  std::vector<std::vector<double>> tensors;
  std::vector<std::int64_t> steps;
  bool operator==(const Snapshot&) const = default;
};

Snapshot snapshot(const Optimizer& optimizer) {
  Snapshot result;
  for (const Parameter& parameter : optimizer.parameters()) {
    result.tensors.push_back(elements_of(parameter.value()));
    result.tensors.push_back(elements_of(parameter.master()));
  }
  for (const OptimizerState::Slot& slot : optimizer.state().parameters) {
    for (const Tensor& moment : slot.moments) result.tensors.push_back(elements_of(moment));
    result.steps.push_back(slot.steps);
  }
  return result;
}

std::vector<double> times(std::vector<double> values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}

/// Sizes around the slots' alignment and around the chunks of the pass, none, one, and many chunks.
const std::vector<std::int64_t> kAwkwardSizes = {3, 0, 1, 257, 65537, 127, 128, 129, 16384, 1, 0, 16385, 278011};

/// A few of them, for tests that run often.
const std::vector<std::int64_t> kFewSizes = {3, 0, 1, 257, 16385, 129};

ParameterSet set_of(const std::vector<std::int64_t>& sizes, Dtype dtype, const Context& context) {
  ParameterSet set(context, dtype);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    set.add(fmt::format("p{}", i), {sizes[i]}, starting_at(random_values(sizes[i], 3, i)));
  }
  return set;
}

/// Gives parameter i of the set its gradient of step `t`.
void give_random_gradient(const ParameterSet& set, std::size_t i, int t) {
  give_gradient(set[i], random_values(set[i].shape().size(), 4, i + 1000 * static_cast<std::uint64_t>(t)));
}

/// A hand-written op with saved values: the sum of squares.
class SumOfSquaresRule final : public Rule {
 public:
  explicit SumOfSquaresRule(const Tensor& x) { save(x); }
  void backward(Backward& sweep) override {
    GradientRequest request = sweep.request(0);
    const std::vector<double> x = elements_of(saved(0));
    std::vector<double> d(x.size());
    if (request.c.defined()) d = elements_of(request.c);
    for (std::size_t i = 0; i < d.size(); ++i) d[i] += 2 * x[i] * sweep.dy().item();
    request.d.copy_from(Tensor::from(sweep.context(), request.d.shape(), d).to(request.d.dtype()));
    sweep.written(0);
  }
};

Var sum_of_squares(const Var& x) {
  Recording op("sum_of_squares", {x});
  double sum = 0;
  for (const double value : elements_of(x.value())) sum += value * value;
  return op.finish<SumOfSquaresRule>(Tensor::full(op.context(), {}, accumulation_dtype(x.dtype()), sum), x.value());
}

class OptimizerTest : public ::testing::TestWithParam<std::tuple<DeviceType, Kind, Dtype>> {
 protected:
  void SetUp() override { skip_without(std::get<0>(GetParam())); }

  Kind kind() const { return std::get<1>(GetParam()); }
  Dtype dtype() const { return std::get<2>(GetParam()); }
  static Context device_context(const ContextOptions& options) { return context_on(std::get<0>(GetParam()), options); }
};
INSTANTIATE_TEST_SUITE_P(All, OptimizerTest,
                         ::testing::Combine(kDevices, ::testing::ValuesIn(kKinds),
                                            ::testing::ValuesIn(kFloatingDtypes)),
                         [](const auto& each) {
                           return fmt::format("{}_{}_{}", to_string(std::get<0>(each.param)),
                                              name_of(std::get<1>(each.param)), name_of(std::get<2>(each.param)));
                         });

TEST_P(OptimizerTest, SaysHowMuchItKeeps) {
  const ParameterSet set = set_of({10, 200}, dtype(), device_context({.threads = 1}));
  const std::int64_t moments = kind() == Kind::sgd ? 0 : kind() == Kind::adam || kind() == Kind::adamw ? 2 : 1;
  const auto element = static_cast<std::int64_t>(size_of(accumulation_dtype(dtype())));
  EXPECT_EQ(make_optimizer(kind(), set).state_bytes(), moments * (128 + 256) * element) << "in multiples of 128";
}

TEST_P(OptimizerTest, StepsEveryElementOfAwkwardSizesAlike) {
  // Each element of a large set must move as it would in a set of its own.
  const ParameterSet set = set_of(kAwkwardSizes, dtype(), device_context({.threads = 2}));
  Optimizer optimizer = make_optimizer(kind(), set);
  std::vector<std::vector<double>> before;
  for (const Parameter& parameter : set) before.push_back(elements_of(parameter.master()));
  for (int t = 0; t < 3; ++t) {
    for (std::size_t i = 0; i < set.size(); ++i) give_random_gradient(set, i, t);
    const StepReport report = optimizer.step();
    EXPECT_TRUE(report.applied);
    EXPECT_EQ(report.stepped, static_cast<std::int64_t>(set.size()));
    EXPECT_EQ(report.skipped, 0);
    expect_values_are_rounded_masters(set);
  }
  for (std::size_t i = 0; i < set.size(); ++i) {
    const std::int64_t size = kAwkwardSizes[i];
    const std::vector<double> after = elements_of(set[i].master());
    for (std::int64_t at = 0; at < size;
         at += std::max<std::int64_t>(1, std::min<std::int64_t>(size - 1 - at, size / 5))) {
      const auto k = static_cast<std::size_t>(at);
      const ParameterSet alone = one_value(dtype(), before[i][k], set.context());
      Optimizer reference = make_optimizer(kind(), alone);
      for (int t = 0; t < 3; ++t) {
        give_gradient(alone["p"], {random_values(size, 4, i + 1000 * static_cast<std::uint64_t>(t))[k]});
        reference.step();
      }
      ASSERT_NEAR(after[k], master_of(alone["p"]), steps_bound(dtype(), 3, 0.3, 1.5)) << "parameter " << i << ", " << k;
      ASSERT_NE(after[k], before[i][k]) << "parameter " << i << ", " << k;
    }
  }
}

TEST_P(OptimizerTest, GivesTheSameBitsForAnyNumberOfThreads) {
  Snapshot expected;
  for (const int threads : {1, 2, 3, 4, 8}) {
    const ParameterSet set = set_of(kFewSizes, dtype(), device_context({.threads = threads}));
    Optimizer optimizer = make_optimizer(kind(), set, true);
    for (int t = 0; t < 3; ++t) {
      for (std::size_t i = 0; i < set.size(); ++i) give_random_gradient(set, i, t);
      optimizer.step();
    }
    if (threads == 1) {
      expected = snapshot(optimizer);
    } else {
      EXPECT_EQ(snapshot(optimizer), expected) << threads << " threads";
    }
  }
}

TEST_P(OptimizerTest, SkipsParametersWithoutAGradient) {
  ParameterSet set(device_context({.threads = 2}), dtype());
  const Parameter a = set.add("a", {5}, starting_at(random_values(5, 1, 0)));
  const Parameter b = set.add("b", {300}, starting_at(random_values(300, 1, 1)));
  const Parameter c = set.add("c", {7}, starting_at(random_values(7, 1, 2)));
  Optimizer optimizer = make_optimizer(kind(), set);
  for (const Parameter& parameter : {a, b, c}) poison_gradient(parameter);
  give_gradient(a, random_values(5, 2, 0));
  give_gradient(c, random_values(7, 2, 1));
  const std::vector<double> b_before = elements_of(b.master());
  const StepReport report = optimizer.step();
  EXPECT_TRUE(report.applied);
  EXPECT_EQ(report.stepped, 2);
  EXPECT_EQ(report.skipped, 1);
  EXPECT_FALSE(report.nonfinite.defined());
  EXPECT_EQ(elements_of(b.master()), b_before);
  EXPECT_EQ(optimizer.steps(a), 1);
  EXPECT_EQ(optimizer.steps(b), 0);
  EXPECT_EQ(optimizer.steps(c), 1);
  const OptimizerState state = optimizer.state();
  for (const Tensor& moment : state.parameters[1].moments) {
    EXPECT_EQ(elements_of(moment), std::vector<double>(300, 0.0));
  }
  for (const Parameter& parameter : set) EXPECT_FALSE(parameter.has_gradient()) << parameter.name();
}

TEST_P(OptimizerTest, SkipsFrozenParametersEvenWithAGradient) {
  ParameterSet set(device_context({.threads = 1}), dtype());
  const Parameter a = set.add("a", {2}, starting_at({1, 2}));
  const Parameter b = set.add("b", {2}, starting_at({1, 2}));
  Optimizer optimizer = make_optimizer(kind(), set);
  give_gradient(a, {1, 1});
  give_gradient(b, {1, 1});
  a.freeze();
  EXPECT_EQ(optimizer.step().stepped, 1);
  EXPECT_EQ(elements_of(a.master()), (std::vector<double>{1, 2}));
  EXPECT_NE(elements_of(b.master()), (std::vector<double>{1, 2}));
  EXPECT_EQ(optimizer.steps(a), 0);
  EXPECT_FALSE(a.has_gradient()) << "a gradient from before must not be added to later";
  a.unfreeze();
  give_gradient(a, {1, 1});
  EXPECT_EQ(optimizer.step().stepped, 1);
  EXPECT_EQ(elements_of(a.master()), elements_of(b.master())) << "a's first step is b's first step";
}

TEST_P(OptimizerTest, DoesNothingWhereThereIsNothingToDo) {
  ParameterSet none(device_context({.threads = 1}), dtype());
  Optimizer idle = make_optimizer(kind(), none);
  EXPECT_TRUE(idle.step().applied);

  const ParameterSet set = one_value(dtype(), 1, device_context({.threads = 1}));
  Optimizer optimizer = make_optimizer(kind(), set);
  const StepReport report = optimizer.step();
  EXPECT_TRUE(report.applied);
  EXPECT_EQ(report.stepped, 0);
  EXPECT_EQ(report.skipped, 1);
  EXPECT_EQ(master_of(set["p"]), 1);
}

TEST_P(OptimizerTest, DividesByTheLossScaleExactly) {
  // Scaled and plain gradients must lead to the same bits, whatever the power of two.
  const std::vector<double> gradient = random_values(1000, 5, 0);
  Snapshot expected;
  for (const double scale : {1.0, 65536.0, 0x1p-20, 0x1p60}) {
    ParameterSet set(device_context({.threads = 2}), dtype());
    const Parameter p = set.add("p", {1000}, starting_at(random_values(1000, 5, 1)));
    Optimizer optimizer = make_optimizer(kind(), set);
    for (int t = 0; t < 3; ++t) {
      give_gradient(p, times(gradient, scale), scale);
      EXPECT_TRUE(optimizer.step().applied);
      EXPECT_FALSE(p.has_gradient());
    }
    if (scale == 1) {
      expected = snapshot(optimizer);
    } else {
      EXPECT_EQ(snapshot(optimizer), expected) << "loss scale " << scale;
    }
  }
}

TEST_P(OptimizerTest, RefusesAStepWithANonFiniteGradientWhenGuarded) {
  for (const double bad : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    ParameterSet set(device_context({.threads = 2}), dtype());
    const Parameter a = set.add("a", {3}, starting_at({1, 2, 3}));
    const Parameter b = set.add("b", {40000}, starting_at(random_values(40000, 1, 1)));
    const Parameter c = set.add("c", {2}, starting_at({1, 2}));
    Optimizer optimizer = make_optimizer(kind(), set, true);
    give_gradient(a, {1, 2, 3});
    give_gradient(b, random_values(40000, 1, 2));
    EXPECT_TRUE(optimizer.step().applied);

    for (const std::size_t at : {std::size_t{0}, std::size_t{16383}, std::size_t{20000}, std::size_t{39999}}) {
      const Snapshot before = snapshot(optimizer);
      std::vector<double> gradient = random_values(40000, 1, 3);
      gradient[at] = bad;
      give_gradient(a, {1, 2, 3});
      give_gradient(b, gradient);
      give_gradient(c, {bad, bad});
      const StepReport report = optimizer.step();
      EXPECT_FALSE(report.applied) << "element " << at;
      EXPECT_EQ(report.stepped, 0);
      EXPECT_EQ(report.skipped, 3);
      EXPECT_EQ(report.nonfinite, b) << "the first of two";
      EXPECT_EQ(snapshot(optimizer), before) << "element " << at;
      for (const Parameter& parameter : set) EXPECT_FALSE(parameter.has_gradient());
    }
    give_gradient(a, {1, 2, 3});
    EXPECT_TRUE(optimizer.step().applied) << "the next good step goes through";
    EXPECT_EQ(optimizer.steps(a), 2);
  }
}

TEST_P(OptimizerTest, TheGuardIgnoresWhatIsNotStepped) {
  ParameterSet set(device_context({.threads = 1}), dtype());
  const Parameter a = set.add("a", {1}, starting_at({1}));
  const Parameter frozen = set.add("frozen", {1}, starting_at({1}));
  const Parameter empty = set.add("empty", {1}, starting_at({1}));
  Optimizer optimizer = make_optimizer(kind(), set, true);
  poison_gradient(empty);
  give_gradient(a, {1});
  give_gradient(frozen, {kInfinity});
  frozen.freeze();
  EXPECT_TRUE(optimizer.step().applied);
}

TEST_P(OptimizerTest, GuardsByDefaultOnlyScaledGradients) {
  const ParameterSet set = one_value(dtype(), 1, device_context({.threads = 1}));
  const auto steps_with = [&](std::optional<bool> option, double scale) {
    Optimizer optimizer = make_optimizer(kind(), set, option);
    give_gradient(set["p"], {kInfinity}, scale);
    return optimizer.step().applied;
  };
  EXPECT_FALSE(steps_with(std::nullopt, 1024));
  EXPECT_EQ(master_of(set["p"]), 1);
  EXPECT_FALSE(steps_with(true, 1));
  EXPECT_EQ(master_of(set["p"]), 1);
  EXPECT_TRUE(steps_with(std::nullopt, 1));
  EXPECT_FALSE(std::isfinite(master_of(set["p"]))) << "unguarded, it is the caller's business";
  EXPECT_TRUE(steps_with(false, 1024));
}

TEST_P(OptimizerTest, TapesRecordedBeforeAStepRefuseBackward) {
  ParameterSet set(device_context({.threads = 1}), dtype());
  const Parameter stepped = set.add("stepped", {2}, starting_at({1, 2}));
  const Parameter other = set.add("other", {2}, starting_at({1, 2}));
  Optimizer optimizer = make_optimizer(kind(), set);

  Tape tape(set.context());
  const Var loss = sum_of_squares(tape.parameter(stepped));
  Tape unaffected(set.context());
  const Var other_loss = sum_of_squares(unaffected.parameter(other));
  give_gradient(stepped, {1, 1});
  optimizer.step();
  EXPECT_THROW(tape.backward(loss), StateError);
  EXPECT_FALSE(stepped.has_gradient());
  unaffected.backward(other_loss);
  EXPECT_EQ(elements_of(other.gradient()), (std::vector<double>{2, 4}));
}

TEST_P(OptimizerTest, MinimisesWhatBackwardDifferentiates) {
  ParameterSet set(device_context({.threads = 1}), dtype());
  const Parameter p = set.add("p", {3}, starting_at({1, -2, 0.5}));
  Optimizer optimizer = make_optimizer(kind(), set);
  double first = 0;
  double last = 0;
  for (int t = 0; t < 60; ++t) {
    Tape tape(set.context());
    const Var loss = sum_of_squares(tape.parameter(p));
    last = loss.item();
    if (t == 0) first = last;
    tape.backward(loss, {.loss_scale = t % 3 ? 1024.0 : 1.0});
    EXPECT_TRUE(optimizer.step().applied);
    expect_values_are_rounded_masters(set);
  }
  EXPECT_EQ(first, 5.25);
  EXPECT_LT(last, 0.05 * first);
}

TEST_P(OptimizerTest, ResumesAsIfNeverInterrupted) {
  for (const int interrupted : {0, 1, 5}) {
    ParameterSet set = set_of(kFewSizes, dtype(), device_context({.threads = 2}));
    Optimizer optimizer = make_optimizer(kind(), set);
    const auto run = [](Optimizer& stepping, int from, int to) {
      const ParameterSet& parameters = stepping.parameters();
      for (int t = from; t < to; ++t) {
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          if ((i + static_cast<std::size_t>(t)) % 3) give_random_gradient(parameters, i, t);
        }
        stepping.step();
      }
    };
    run(optimizer, 0, interrupted);
    const OptimizerState state = optimizer.state();
    ParameterSet copy = set_of(kFewSizes, dtype(), device_context({.threads = 2}));
    for (std::size_t i = 0; i < set.size(); ++i) copy[i].assign(set[i].master());

    // Other options than the state's: loading must bring back those that the state was made with.
    Optimizer resumed = kind() == Kind::adam ? Optimizer(Adam(copy, {.learning_rate = 1, .beta1 = 0.5, .beta2 = 0.5}))
                        : kind() == Kind::adamw ? Optimizer(AdamW(copy, {.learning_rate = 1, .beta1 = 0, .epsilon = 1}))
                                                : Optimizer(Sgd(copy, {.learning_rate = 1, .weight_decay = 3}));
    resumed.load_state(state);
    EXPECT_EQ(resumed.learning_rate(), 0.1);
    EXPECT_EQ(snapshot(resumed), snapshot(optimizer));
    run(optimizer, interrupted, interrupted + 4);
    run(resumed, interrupted, interrupted + 4);
    EXPECT_EQ(snapshot(resumed), snapshot(optimizer)) << "interrupted after step " << interrupted;
    EXPECT_EQ(resumed.state().options, optimizer.state().options);
  }
}

TEST_P(OptimizerTest, AllocatesNothingInAnyStep) {
  const ParameterSet set = set_of(kFewSizes, dtype(), device_context({.threads = 2}));
  Optimizer optimizer = make_optimizer(kind(), set, true);
  const auto mark_gradients_valid = [&] {
    for (detail::ParameterSlot& slot : set.store().slots()) slot.gradient_valid = true;
  };
  const std::int64_t before = allocations();
  const std::int64_t blocks = set.context().memory().system_allocations;
  for (int t = 0; t < 10; ++t) {
    mark_gradients_valid();
    optimizer.set_learning_rate(0.1 / (t + 1));
    const StepReport report = optimizer.step();
    if (report.stepped != static_cast<std::int64_t>(set.size())) break;
  }
  EXPECT_EQ(allocations(), before);
  EXPECT_EQ(set.context().memory().system_allocations, blocks);
  EXPECT_EQ(optimizer.steps(set[0]), 10);
}

TEST_P(OptimizerTest, UsesTheLearningRateThatIsSet) {
  const ParameterSet set = one_value(dtype(), 1, device_context({.threads = 1}));
  Optimizer optimizer = make_optimizer(kind(), set);
  EXPECT_EQ(optimizer.learning_rate(), 0.1);
  optimizer.set_learning_rate(0);
  give_gradient(set["p"], {1});
  optimizer.step();
  EXPECT_EQ(master_of(set["p"]), 1) << "a rate of 0 moves nothing, decay included";
  EXPECT_EQ(optimizer.steps(set["p"]), 1);
  for (const double bad : {-0.1, kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(optimizer.set_learning_rate(bad), ValueError);
    EXPECT_EQ(optimizer.learning_rate(), 0);
  }
}

TEST(OptimizerSetTest, HandlesAThousandParameters) {
  ParameterSet set(Context::cpu({.threads = 2}), Dtype::f32);
  for (std::size_t i = 0; i < 1000; ++i) {
    set.add(fmt::format("p{}", i), {static_cast<std::int64_t>(i % 5)}, starting_at(std::vector<double>(i % 5, 0.0)));
  }
  Sgd optimizer(set, {.learning_rate = 1});
  for (std::size_t i = 0; i < set.size(); i += 7) give_gradient(set[i], std::vector<double>(i % 5, -double(i)));
  EXPECT_EQ(optimizer.step().stepped, 143);
  for (std::size_t i = 0; i < set.size(); ++i) {
    EXPECT_EQ(elements_of(set[i].value()), std::vector<double>(i % 5, i % 7 ? 0.0 : double(i))) << i;
  }
}

TEST(OptimizerSetTest, BackwardTakesOnlyLossScalesThatCanBeUndone) {
  const ParameterSet set = one_value(Dtype::f64, 1);
  Tape tape(set.context());
  const Var loss = sum_of_squares(tape.parameter(set["p"]));
  for (const double bad : {0.0, -2.0, 3.0, 0x1p127, 0x1p-127, kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(tape.backward(loss, {.loss_scale = bad}), ValueError) << bad;
    EXPECT_FALSE(set["p"].has_gradient());
  }
  for (const double good : {0x1p126, 0x1p-126}) {
    tape.backward(loss, {.keep = true, .loss_scale = good});
    EXPECT_EQ(set["p"].gradient().item(), 2 * good);
    EXPECT_THROW(tape.backward(loss, {.keep = true}), StateError) << "gradients of two scales do not add";
    set.clear_gradients();
  }
}

TEST(OptimizerSetTest, ClosesTheSetAndOutlivesTheCallersHandle) {
  auto set = std::make_unique<ParameterSet>(Context::cpu({.threads = 1}));
  set->add("p", {1}, starting_at({1}));
  Sgd optimizer(*set, {.learning_rate = 0.5});
  EXPECT_THROW(set->add("q", {1}, starting_at({1})), StateError);
  set.reset();
  give_gradient(optimizer.parameters()["p"], {1});
  EXPECT_TRUE(optimizer.step().applied);
  EXPECT_EQ(master_of(optimizer.parameters()["p"]), 0.5);
}

TEST(OptimizerSetTest, MovesWithItsState) {
  const ParameterSet set = one_value(Dtype::f32, 1);
  Optimizer optimizer = Sgd(set, {.learning_rate = 0.5, .momentum = 0.5});
  give_gradient(set["p"], {1});
  optimizer.step();
  Optimizer moved = std::move(optimizer);
  EXPECT_THROW(optimizer.step(), StateError);  // NOLINT(bugprone-use-after-move): what it is about
  optimizer = Adam(one_value(Dtype::f32, 0));
  give_gradient(set["p"], {1});
  moved.step();
  EXPECT_EQ(master_of(set["p"]), 1 - 0.5 - 0.75);
  EXPECT_EQ(moved.steps(set["p"]), 2);
}

TEST(OptimizerSetTest, KnowsOnlyItsOwnParameters) {
  Sgd optimizer(one_value(Dtype::f32, 1));
  EXPECT_THROW(optimizer.steps(Parameter()), ValueError);
  EXPECT_THROW(optimizer.steps(one_value(Dtype::f32, 1)["p"]), ValueError);
}

class OptimizerStateTest : public ::testing::Test {
 protected:
  OptimizerStateTest() {
    set_.add("a", {2}, starting_at({1, 2}));
    set_.add("b", {3}, starting_at({1, 2, 3}));
    optimizer_ = std::make_unique<Adam>(set_);
    give_gradient(set_["a"], {1, 2});
    optimizer_->step();
    state_ = optimizer_->state();
  }

  template <class E>
  void expect_refused(const OptimizerState& state) {
    const Snapshot before = snapshot(*optimizer_);
    EXPECT_THROW(optimizer_->load_state(state), E);
    EXPECT_EQ(snapshot(*optimizer_), before);
    EXPECT_EQ(optimizer_->state().options, before_options_);
  }

  ParameterSet set_{Context::cpu({.threads = 1})};
  std::unique_ptr<Optimizer> optimizer_;
  OptimizerState state_;
  const std::map<std::string, double, std::less<>> before_options_ = {
      {"learning_rate", 1e-3}, {"beta1", 0.9}, {"beta2", 0.999}, {"epsilon", 1e-8}, {"weight_decay", 0}};
};

TEST_F(OptimizerStateTest, NamesEverything) {
  EXPECT_EQ(state_.kind, "adam");
  EXPECT_EQ(state_.options, before_options_);
  ASSERT_EQ(state_.parameters.size(), 2u);
  EXPECT_EQ(state_.parameters[0].name, "a");
  EXPECT_EQ(state_.parameters[0].steps, 1);
  EXPECT_EQ(state_.parameters[1].steps, 0);
  EXPECT_EQ(state_.parameters[1].moments[1].shape(), Shape({3}));
}

TEST_F(OptimizerStateTest, IsACopy) {
  const std::vector<double> m = elements_of(state_.parameters[0].moments[0]);
  give_gradient(set_["a"], {5, 5});
  optimizer_->step();
  EXPECT_EQ(elements_of(state_.parameters[0].moments[0]), m);
  optimizer_->load_state(state_);
  give_gradient(set_["a"], {5, 5});
  optimizer_->step();
  EXPECT_EQ(elements_of(state_.parameters[0].moments[0]), m);
}

TEST_F(OptimizerStateTest, IsMatchedByNameNotByPosition) {
  std::swap(state_.parameters[0], state_.parameters[1]);
  const Snapshot before = snapshot(*optimizer_);
  optimizer_->load_state(state_);
  EXPECT_EQ(snapshot(*optimizer_), before);
}

TEST_F(OptimizerStateTest, OfAnotherKindIsRefused) {
  expect_refused<ValueError>(AdamW(set_).state());
  expect_refused<ValueError>(Sgd(set_).state());
}

TEST_F(OptimizerStateTest, WithWrongParametersIsRefused) {
  OptimizerState missing = state_;
  missing.parameters.pop_back();
  expect_refused<ValueError>(missing);
  OptimizerState twice = state_;
  twice.parameters[1] = twice.parameters[0];
  expect_refused<ValueError>(twice);
  OptimizerState unknown = state_;
  unknown.parameters[1].name = "c";
  expect_refused<ValueError>(unknown);
  OptimizerState negative = state_;
  negative.parameters[0].steps = -1;
  expect_refused<ValueError>(negative);
}

TEST_F(OptimizerStateTest, WithWrongMomentsIsRefused) {
  OptimizerState fewer = state_;
  fewer.parameters[1].moments.pop_back();
  expect_refused<ValueError>(fewer);
  OptimizerState shape = state_;
  shape.parameters[1].moments[0] = Tensor::zeros(set_.context(), {4}, Dtype::f32);
  expect_refused<ShapeError>(shape);
  OptimizerState empty = state_;
  empty.parameters[1].moments[0] = Tensor();
  expect_refused<ShapeError>(empty);
  OptimizerState dtype = state_;
  dtype.parameters[1].moments[0] = Tensor::zeros(set_.context(), {3}, Dtype::f64);
  expect_refused<DtypeError>(dtype);
}

TEST_F(OptimizerStateTest, WithWrongOptionsIsRefused) {
  OptimizerState range = state_;
  range.options["beta1"] = 1;
  expect_refused<ValueError>(range);
  OptimizerState rate = state_;
  rate.options["learning_rate"] = -1;
  expect_refused<ValueError>(rate);
  OptimizerState unknown = state_;
  unknown.options["momentum"] = 0.9;
  expect_refused<ValueError>(unknown);
  for (const auto& [name, value] : state_.options) {
    OptimizerState missing = state_;
    missing.options.erase(name);
    expect_refused<ValueError>(missing);
  }
}

}  // namespace
}  // namespace fusegrad
