#include <cmath>
#include <optional>

#include <gmock/gmock.h>

#include "tests/support/allocations.h"
#include "tests/support/dtypes.h"
#include "tests/support/tensors.h"

#include <fusegrad/fusegrad.h>

namespace fusegrad {
namespace {

using namespace fusegrad::test;

Tensor random_tensor(const Context& context, const Shape& shape, Dtype dtype, std::uint32_t stream) {
  std::vector<float> values(static_cast<std::size_t>(shape.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        static_cast<float>(philox({static_cast<std::uint32_t>(i), 0, stream, 0}, {7, 0})[0] >> 8) * 0x1p-23f - 1;
  }
  return Tensor::from(context, shape, values).to(dtype);
}

std::vector<double> all_values(const ParameterSet& parameters) {
  std::vector<double> values;
  for (const Parameter& parameter : parameters) {
    for (const Tensor& tensor : {parameter.master(), parameter.value()}) {
      for (const double value : values_of(tensor)) values.push_back(value);
    }
  }
  return values;
}

/// What a step function is made of: it records a loss of a network of its own on (x, target).
struct Network {
  ParameterSet parameters;
  std::function<void(Tape&, const Tensor& x, const Tensor& target, std::vector<Var>& losses)> record;
};

constexpr std::int64_t kWidth = 24;

Parameter add(ParameterSet& set, std::string name, const Shape& shape, std::uint32_t seed) {
  return set.add(std::move(name), shape, [seed](std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] =
          (static_cast<float>(philox({static_cast<std::uint32_t>(i), 1, seed, 0}, {7, 0})[0] >> 8) * 0x1p-23f - 1) / 4;
    }
  });
}

Network chain(const Context& context, Dtype dtype) {
  const Mlp net(context, {.widths = {16, kWidth, kWidth, kWidth, 8}, .dtype = dtype, .seed = 3});
  return {net.parameters(), [net](Tape& tape, const Tensor& x, const Tensor& target, std::vector<Var>& losses) {
            losses.push_back(mse_loss(net(tape.input(x)), target));
            tape.backward(losses.back());
          }};
}

/// Every gradient has more than one contribution: one weight and bias for three layers, a residual join, a fan-out.
Network shared(const Context& context, Dtype dtype) {
  ParameterSet set(context, dtype);
  const Parameter in = add(set, "in", {kWidth, 16}, 1);
  const Parameter w = add(set, "w", {kWidth, kWidth}, 2);
  const Parameter b = add(set, "b", {kWidth}, 3);
  const Parameter out = add(set, "out", {8, kWidth}, 4);
  return {set, [=](Tape& tape, const Tensor& x, const Tensor& target, std::vector<Var>& losses) {
            const LinearOptions relu{.activation = Activation::relu};
            const Var h0 = linear(tape.input(x), tape.parameter(in), relu);
            const Var h1 = linear(h0, tape.parameter(w), tape.parameter(b), relu);
            const Var h2 = linear(h1, tape.parameter(w), tape.parameter(b), relu);
            const Var h3 = linear(fusegrad::add(h2, h0), tape.parameter(w), tape.parameter(b), relu);
            const Var y = linear(fusegrad::add(h3, h1), tape.parameter(out));
            losses.push_back(mse_loss(y, target));
            tape.backward(losses.back());
          }};
}

/// Two backwards into the same gradients before the optimizer steps.
Network accumulating(const Context& context, Dtype dtype) {
  const Mlp net(context, {.widths = {16, kWidth, kWidth, 8}, .dtype = dtype, .seed = 5});
  const Context at = context;
  return {net.parameters(), [net, at](Tape& tape, const Tensor& x, const Tensor& target, std::vector<Var>& losses) {
            Tape other(at);
            other.backward(mse_loss(net(other.input(x)), target));
            losses.push_back(mse_loss(net(tape.input(x)), target));
            tape.backward(losses.back());
          }};
}

/// A computed weight, whose gradient another rule reads, and one that is looked at.
Network computed(const Context& context, Dtype dtype) {
  ParameterSet set(context, dtype);
  const Parameter in = add(set, "in", {kWidth, 16}, 1);
  const Parameter scale = add(set, "scale", {kWidth, kWidth}, 2);
  const Parameter w = add(set, "w", {kWidth, kWidth}, 3);
  const Parameter out = add(set, "out", {8, kWidth}, 4);
  return {set, [=](Tape& tape, const Tensor& x, const Tensor& target, std::vector<Var>& losses) {
            const Var h = linear(tape.input(x), tape.parameter(in), {.activation = Activation::relu});
            const Var weight = mul(tape.parameter(w), tape.parameter(scale));
            const Var g = linear(h, weight, {.activation = Activation::gelu_tanh});
            tape.retain_gradient(g);
            losses.push_back(mse_loss(linear(g, tape.parameter(out)), target));
            tape.backward(losses.back());
          }};
}

using MakeNetwork = Network (*)(const Context&, Dtype);
constexpr std::pair<const char*, MakeNetwork> kNetworks[] = {
    {"chain", chain}, {"shared", shared}, {"accumulating", accumulating}, {"computed", computed}};

/// Trains for `steps` steps with changing batches and learning rates, and returns losses and parameters.
struct Trained {
  std::vector<double> losses;
  std::vector<double> values;
  bool operator==(const Trained&) const = default;
};

enum class Way { eager, step, branches };

Trained train(const Context& context, Dtype dtype, MakeNetwork make, Way way, int steps) {
  const Network network = make(context, dtype);
  AdamW optimizer(network.parameters, {.learning_rate = 0});
  std::vector<Var> losses;
  const auto function = [&](Tape& tape, const Tensor& x, const Tensor& target) {
    losses.clear();
    network.record(tape, x, target, losses);
    optimizer.step();
    return losses.back();
  };
  Step step(context, function, {.branches = way == Way::branches});
  Trained trained;
  for (int i = 0; i < steps; ++i) {
    const auto stream = static_cast<std::uint32_t>(i);
    const Tensor x = random_tensor(context, {40, 16}, dtype, stream);
    const Tensor target = random_tensor(context, {40, 8}, accumulation_dtype(dtype), stream + 1000);
    optimizer.set_learning_rate(1e-3 / (1 + i));
    if (way == Way::eager) {
      Tape tape(context);
      trained.losses.push_back(function(tape, x, target).value().item());
    } else {
      step(x, target);
    }
  }
  for (int i = 0; way != Way::eager && i < steps; ++i) trained.losses.push_back(step.loss(i));
  trained.values = all_values(network.parameters);
  trained.values.push_back(static_cast<double>(optimizer.steps(network.parameters[0])));
  return trained;
}

class StepEqualsEagerTest : public EachDevice {};
FUSEGRAD_EACH_DEVICE(StepEqualsEagerTest);

TEST_P(StepEqualsEagerTest, BitForBitForFiftySteps) {
  for (const auto& [name, make] : kNetworks) {
    SCOPED_TRACE(name);
    const ContextOptions options{.plans = PlanPolicy::heuristic};
    const Trained eager = train(device_context(options), dtype(), make, Way::eager, 50);
    EXPECT_TRUE(std::isfinite(eager.losses.back()));
    EXPECT_EQ(train(device_context(options), dtype(), make, Way::step, 50), eager);
    EXPECT_EQ(train(device_context(options), dtype(), make, Way::branches, 50), eager);
  }
}

TEST_P(StepEqualsEagerTest, AlsoUnderEveryStrategy) {
  for (const Strategy strategy : {Strategy::epilogue, Strategy::split, Strategy::pass}) {
    SCOPED_TRACE(name_of(strategy));
    const ContextOptions options{.strategy = strategy, .plans = PlanPolicy::heuristic};
    EXPECT_EQ(train(device_context(options), dtype(), shared, Way::branches, 5),
              train(device_context(options), dtype(), shared, Way::eager, 5));
  }
}

/// A net, an optimizer and a step that trains it on fixed shapes; `inside` runs in the function, before backward.
class StepTest : public DeviceTest {
 protected:
  /// Algorithms by rank: what is measured may differ from context to context.
  const Context& context() {
    if (!context_) context_ = context_on(GetParam(), {.plans = PlanPolicy::heuristic});
    return *context_;
  }

  struct Training {
    Mlp net;
    Adam optimizer;
    std::function<void(Tape&, const Var&)> inside;
    std::function<void()> after = {};

    Var operator()(Tape& tape, const Tensor& x, const Tensor& target) {
      const Var loss = mse_loss(net(tape.input(x)), target);
      if (inside) inside(tape, loss);
      tape.backward(loss);
      if (after) after();
      optimizer.step();
      return loss;
    }
  };

  Training training() {
    Mlp net(context(), {.widths = {16, 24, 8}, .seed = 1});
    return {net, Adam(net.parameters(), {.learning_rate = 1e-2}), {}};
  }
  Step step_of(Training& training, const StepOptions& options = {}) {
    return Step(
        context(), [&](Tape& tape, const Tensor& x, const Tensor& target) { return training(tape, x, target); },
        options);
  }
  Tensor x(std::int64_t batch = 32) { return random_tensor(context(), {batch, 16}, Dtype::f32, 1); }
  Tensor target(std::int64_t batch = 32) { return random_tensor(context(), {batch, 8}, Dtype::f32, 2); }
  bool on_gpu() const { return GetParam() == DeviceType::cuda; }

  /// f() throws an Error whose text contains `text`.
  template <class Error>
  static void expect_error(const std::function<void()>& f, const std::string& text) {
    try {
      f();
      ADD_FAILURE() << "nothing was thrown; wanted: " << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(text));
    }
  }

 private:
  std::optional<Context> context_;
};
INSTANTIATE_TEST_SUITE_P(Each, StepTest, kDevices, device_name);

TEST_P(StepTest, CountsStepsInEveryCall) {
  // Adam with a constant gradient of 1: p moves by exactly the learning rate, for every t. A count that stands still
  // inside a graph is off by orders of magnitude.
  ParameterSet set(context());
  const Parameter p = set.add("p", {1}, fill_with({0}));
  Adam optimizer(set, {.learning_rate = 0.01});
  Step step(context(), [&](Tape& tape) {
    const Var loss = sum(tape.parameter(p));
    tape.backward(loss);
    optimizer.step();
    return loss;
  });
  for (int i = 0; i < 1000; ++i) step();
  EXPECT_EQ(optimizer.steps(p), 1000);
  EXPECT_NEAR(values_of(p.value())[0], -9.99999999, 1e-3);
  EXPECT_NEAR(step.loss(999), -9.99, 1e-3);
  EXPECT_EQ(step.info().replays, on_gpu() ? 999 : 0);
}

TEST_P(StepTest, GoesOnEagerlyAndBack) {
  Training mixed = training();
  Training eager = training();
  Step step = step_of(mixed);
  for (int i = 0; i < 12; ++i) {
    for (Training* each : {&mixed, &eager}) {
      if (each == &mixed && i % 3 != 0) {
        step(x(), target());
      } else {
        Tape tape(context());
        (*each)(tape, x(), target());
      }
    }
  }
  EXPECT_EQ(all_values(mixed.net.parameters()), all_values(eager.net.parameters()));
  EXPECT_EQ(mixed.optimizer.state().parameters[0].steps, 12);
}

TEST_P(StepTest, MeasuresItsPlansAtFirstUnlessToldOtherwise) {
  if (!on_gpu()) GTEST_SKIP() << "a CPU has nothing to choose";
  for (const bool told : {false, true}) {
    ContextOptions options;
    if (told) options.plans = PlanPolicy::heuristic;
    const Context fresh = context_on(GetParam(), options);
    const Mlp net(fresh, {.widths = {16, 24, 8}, .seed = 1});
    Adam optimizer(net.parameters());
    const auto function = [&](Tape& tape, const Tensor& input, const Tensor& wanted) {
      const Var loss = mse_loss(net(tape.input(input)), wanted);
      tape.backward(loss);
      optimizer.step();
      return loss;
    };
    const Tensor input = random_tensor(fresh, {32, 16}, Dtype::f32, 1);
    const Tensor wanted = random_tensor(fresh, {32, 8}, Dtype::f32, 2);
    {
      Tape tape(fresh);
      function(tape, input, wanted);
    }
    EXPECT_EQ(fresh.counters().plans_measured, 0);
    Step step(fresh, function);
    step(input, wanted);
    const std::int64_t measured = fresh.counters().plans_measured;
    EXPECT_EQ(measured > 0, !told);
    for (int i = 0; i < 3; ++i) step(input, wanted);
    EXPECT_EQ(fresh.counters().plans_measured, measured);
    EXPECT_TRUE(std::isfinite(step.loss(3)));
  }
}

TEST_P(StepTest, KeepsAGraphForEachShape) {
  Training net = training();
  Step step = step_of(net, {.graphs = 2});
  for (int round = 0; round < 3; ++round) {
    for (const std::int64_t batch : {32, 7}) step(x(batch), target(batch));
  }
  EXPECT_EQ(step.info().captures, on_gpu() ? 2 : 0);
  EXPECT_EQ(step.info().graphs, on_gpu() ? 2 : 0);
  for (int i = 0; i < 2; ++i) step(x(5), target(5));  // one of the others goes
  EXPECT_EQ(step.info().graphs, on_gpu() ? 2 : 0);
  for (int i = 0; i < 2; ++i) step(x(32), target(32));
  EXPECT_EQ(step.info().calls, 10);

  Training eager = training();
  for (const std::int64_t batch : {32, 7, 32, 7, 32, 7, 5, 5, 32, 32}) {
    Tape tape(context());
    eager(tape, x(batch), target(batch));
  }
  EXPECT_EQ(all_values(net.net.parameters()), all_values(eager.net.parameters()));
}

TEST_P(StepTest, LossesCanBeReadLater) {
  Training net = training();
  Step step = step_of(net);
  std::vector<double> returned;
  for (int i = 0; i < 5; ++i) returned.push_back(step(x(), target()).item());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(step.loss(i), returned[static_cast<std::size_t>(i)]);
  EXPECT_LT(returned[4], returned[0]);
  EXPECT_THROW(step.loss(5), ValueError);
  EXPECT_THROW(step.loss(-1), ValueError);
  for (int i = 0; i < 1024; ++i) step(x(), target());
  EXPECT_THROW(step.loss(4), ValueError);
  EXPECT_LT(step.loss(5), returned[4]);
}

TEST_P(StepTest, RefusesArgumentsThatDoNotFit) {
  Training net = training();
  Step step = step_of(net);
  const std::vector<double> before = all_values(net.net.parameters());
  EXPECT_THROW(step(x()), ShapeError);
  EXPECT_THROW(step(x(), target(), x()), ShapeError);
  EXPECT_THROW(step(x(), Tensor()), StateError);
  EXPECT_THROW(step(x(), target().to(Context::cpu())), DeviceError);
  EXPECT_THROW(step(x(), target(7)), ShapeError);           // found by the function
  EXPECT_THROW(step(x().to(Dtype::f64), target()), Error);  // and this
  EXPECT_EQ(all_values(net.net.parameters()), before);
  EXPECT_EQ(step.info().calls, 0);
  EXPECT_THROW(step.inputs({{{32, 16}, Dtype::f32}}), ShapeError);
  step(x(), target());
  EXPECT_NE(all_values(net.net.parameters()), before);
}

TEST_P(StepTest, RefusesOptionsAndFunctionsThatAreNone) {
  EXPECT_THROW(Step(context(), 1, {}), ValueError);
  Training net = training();
  EXPECT_THROW(step_of(net, {.graphs = 0}), ValueError);
  Step vector(context(), [](Tape& tape, const Tensor& input) { return tape.input(input); });
  EXPECT_THROW(vector(x()), ShapeError);
  Step empty(context(), [](Tape&) { return Var(); });
  EXPECT_THROW(empty(), StateError);
  Step moved = step_of(net);
  const Step target_of_move = std::move(moved);
  EXPECT_THROW(moved.info(), StateError);  // NOLINT(bugprone-use-after-move)
}

TEST_P(StepTest, RefusesGradientsThatStay) {
  const Mlp net(context(), {.widths = {16, 24, 8}, .seed = 1});
  Step step(context(), [&](Tape& tape, const Tensor& input, const Tensor& wanted) {
    const Var loss = mse_loss(net(tape.input(input)), wanted);
    tape.backward(loss);
    return loss;
  });
  expect_error<StateError>([&] { step(x(), target()); }, "gradient of \"0.weight\" was empty");
  // Now they are there at the beginning, too: every call adds to them.
  const double first = values_of(net.parameters()[0].gradient())[0];
  step(x(), target());
  step(x(), target());
  EXPECT_NEAR(values_of(net.parameters()[0].gradient())[0], 3 * first, 1e-5);
  net.parameters().clear_gradients();
  if (on_gpu()) {
    expect_error<StateError>([&] { step(x(), target()); }, "is empty and was there when the step was captured");
    step.reset();
  }
  expect_error<StateError>([&] { step(x(), target()); }, "was empty");
}

TEST_P(StepTest, TapesFromBeforeACallAreStale) {
  Training net = training();
  Step step = step_of(net);
  for (int i = 0; i < 3; ++i) {
    Tape tape(context());
    const Var loss = mse_loss(net.net(tape.input(x())), target());
    step(x(), target());
    EXPECT_THROW(tape.backward(loss), StateError) << "call " << i;
  }
}

TEST_P(StepTest, RunsForward) {
  const Mlp net(context(), {.widths = {16, 24, 8}, .seed = 1});
  Step step(context(), [&](Tape& tape, const Tensor& input) { return net(tape.input(input)); },
            {.mode = Mode::inference});
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Tensor input = random_tensor(context(), {9, 16}, Dtype::f32, i);
    Tape tape(context(), {.mode = Mode::inference});
    EXPECT_EQ(values_of(step(input)), values_of(net(tape.input(input)).value()));
  }
  EXPECT_THROW(step.loss(0), StateError);
}

TEST_P(StepTest, TakesItsOwnTensorsWithoutACopy) {
  Training net = training();
  Training other = training();
  Step step = step_of(net);
  Step copying = step_of(other);
  std::vector<Tensor> inputs = step.inputs({{{32, 16}, Dtype::f32}, {{32, 8}, Dtype::f32}});
  inputs[1].copy_from(target());
  for (std::uint32_t i = 0; i < 4; ++i) {
    const Tensor batch = random_tensor(context(), {32, 16}, Dtype::f32, 9 + i);
    inputs[0].copy_from(batch);
    step(inputs[0], inputs[1]);
    copying(batch, target());
  }
  EXPECT_EQ(all_values(net.net.parameters()), all_values(other.net.parameters()));
}

TEST_P(StepTest, OtherStepsMayGo) {
  Training one = training();
  Training two = training();
  auto first = std::make_unique<Step>(step_of(one));
  Step second = step_of(two);
  for (int i = 0; i < 3; ++i) {
    (*first)(x(), target());
    second(x(), target());
  }
  first.reset();
  const Tensor other_use_of_its_memory = random_tensor(context(), {64, 64}, Dtype::f32, 4);
  for (int i = 0; i < 3; ++i) second(x(), target());
  second.reset();
  for (int i = 0; i < 3; ++i) second(x(), target());
  Training eager = training();
  for (int i = 0; i < 9; ++i) {
    Tape tape(context());
    eager(tape, x(), target());
  }
  EXPECT_EQ(all_values(two.net.parameters()), all_values(eager.net.parameters()));
}

TEST_P(StepTest, AllocatesNothingInSteadyState) {
  Training net = training();
  Step step = step_of(net);
  const Tensor input = x();
  const Tensor wanted = target();
  for (int i = 0; i < 4; ++i) step(input, wanted);
  const std::int64_t system = context().memory().system_allocations;
  const std::int64_t host = allocations();
  for (int i = 0; i < 50; ++i) step(input, wanted);
  EXPECT_EQ(context().memory().system_allocations, system);
  EXPECT_LE(allocations() - host, on_gpu() ? 0 : 50 * 4);
}

TEST_P(StepTest, RefusesWhatAGraphCannotRepeat) {
  if (!on_gpu()) GTEST_SKIP() << "a CPU runs the function";
  const Context other = Context::cpu();
  Tensor there = Tensor::zeros(context(), {4}, Dtype::f32);
  Training nested = training();
  Step inner = step_of(nested);
  const Tensor input = x();
  const Tensor wanted = target();
  const std::pair<std::function<void(Optimizer&, const Var&)>, const char*> acts[] = {
      {[&](Optimizer&, const Var& loss) { loss.value().item(); }, "a tensor was read"},
      {[&](Optimizer&, const Var& loss) { loss.value().to(other); }, "another context"},
      {[&](Optimizer&, const Var&) {
         Tensor::from(context(), {2}, {1.0f, 2.0f});
       },
       "copied from the host"},
      {[&](Optimizer&, const Var&) { there.copy_from(std::vector<float>(4)); }, "copied from the host"},
      {[&](Optimizer&, const Var&) { context().synchronize(); }, "waited"},
      {[&](Optimizer&, const Var&) { context().release_cached_memory(); }, "released"},
      {[&](Optimizer&, const Var&) { Tensor::zeros(other, {2}, Dtype::f32); }, "another context"},
      {[&](Optimizer& optimizer, const Var&) { optimizer.set_learning_rate(1); }, "learning rate"},
      {[&](Optimizer& optimizer, const Var&) { optimizer.steps(optimizer.parameters()[0]); }, "step counts were read"},
      {[&](Optimizer&, const Var&) { inner(input, wanted); }, "cannot be called by a step function"}};
  for (const auto& [act, message] : acts) {
    for (const int call : {0, 1}) {  // when it first runs, and when it is captured
      SCOPED_TRACE(testing::Message() << message << ", call " << call);
      Training net = training();
      Training eager = training();
      Step step = step_of(net);
      if (call == 1) step(x(), target());
      const std::vector<double> before = all_values(net.net.parameters());
      net.inside = [&](Tape&, const Var& loss) { act(net.optimizer, loss); };
      expect_error<StateError>([&] { step(x(), target()); }, message);
      EXPECT_EQ(all_values(net.net.parameters()), before);
      net.inside = {};
      for (int i = 0; i < 3; ++i) step(x(), target());
      for (int i = 0; i < 3 + call; ++i) {
        Tape tape(context());
        eager(tape, x(), target());
      }
      EXPECT_EQ(all_values(net.net.parameters()), all_values(eager.net.parameters()));
    }
  }
}

TEST_P(StepTest, RefusesWhatChangesFromCallToCall) {
  if (!on_gpu()) GTEST_SKIP() << "a CPU runs the function";
  Training net = training();
  Step step = step_of(net);
  const Tensor input = x();
  step(x(), target());
  net.inside = [&](Tape& tape, const Var&) {
    // Memory for the result is there, but it is another product.
    linear(tape.input(input), tape.parameter(net.net.parameters()[0]));
  };
  expect_error<StateError>([&] { step(x(), target()); }, "it does not do the same each time");
  net.inside = {};
  step(x(), target());
  EXPECT_EQ(step.info().captures, 1);
}

TEST_P(StepTest, SettlesWhatItNeedsAndRefusesWhatNeverDoes) {
  if (!on_gpu()) GTEST_SKIP() << "a CPU runs the function";
  for (const bool settles : {true, false}) {
    Training net = training();
    Training eager = training();
    Step step = step_of(net);
    std::int64_t calls = 0;
    net.inside = [&](Tape&, const Var&) {
      if (!settles || calls < 2) Tensor::full(context(), {1000 * ++calls}, Dtype::f32, 1);
    };
    const auto call_four_times = [&] {
      for (int i = 0; i < 4; ++i) step(x(), target());
    };
    if (settles) {
      call_four_times();
      EXPECT_EQ(step.info().captures, 1);
    } else {
      expect_error<StateError>(call_four_times, "it does not do the same each time");
    }
    for (std::int64_t i = 0; i < step.info().calls; ++i) {
      Tape tape(context());
      eager(tape, x(), target());
    }
    EXPECT_EQ(all_values(net.net.parameters()), all_values(eager.net.parameters()));
  }
}

TEST_P(StepTest, RefusesToLookForGradientsThatAreNotFinite) {
  if (!on_gpu()) GTEST_SKIP() << "a CPU runs the function";
  const Mlp net(context(), {.widths = {16, 24, 8}, .seed = 1});
  Adam optimizer(net.parameters(), {.skip_nonfinite = true});
  Step step(context(), [&](Tape& tape, const Tensor& input, const Tensor& wanted) {
    const Var loss = mse_loss(net(tape.input(input)), wanted);
    tape.backward(loss);
    optimizer.step();
    return loss;
  });
  expect_error<StateError>([&] { step(x(), target()); }, "skip_nonfinite");
}

TEST_P(StepTest, ScalesLossesAsEager) {
  const auto run = [&](bool captured) {
    const Mlp net(context(), {.widths = {16, 24, 8}, .dtype = Dtype::f16, .seed = 1});
    Adam optimizer(net.parameters(), {.learning_rate = 1e-3, .skip_nonfinite = false});
    const auto function = [&](Tape& tape, const Tensor& input, const Tensor& wanted) {
      const Var loss = mse_loss(net(tape.input(input)), wanted);
      tape.backward(loss, {.loss_scale = 1024});
      optimizer.step();
      return loss;
    };
    Step step(context(), function);
    const Tensor input = x().to(Dtype::f16);
    for (int i = 0; i < 5; ++i) {
      if (captured) {
        step(input, target());
      } else {
        Tape tape(context());
        function(tape, input, target());
      }
    }
    return all_values(net.parameters());
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_P(StepTest, HooksSeeCompleteGradients) {
  const auto run = [&](bool captured) {
    Training net = training();
    Tensor seen = Tensor::zeros(context(), {24, 16}, Dtype::f32);
    net.inside = [&](Tape& tape, const Var&) {
      tape.on_gradient(tape.parameter(net.net.parameters()[0]),
                       [&](const Tensor& gradient) { seen.copy_from(gradient); });
    };
    Step step = step_of(net);
    for (int i = 0; i < 4; ++i) {
      if (captured) {
        step(x(), target());
      } else {
        Tape tape(context());
        net(tape, x(), target());
      }
    }
    std::vector<double> values = all_values(net.net.parameters());
    for (const double value : values_of(seen)) values.push_back(value);
    return values;
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_P(StepTest, WorkAfterBackwardSeesCompleteGradients) {
  const auto run = [&](bool captured) {
    Training net = training();
    Tensor seen = Tensor::zeros(context(), {24, 16}, Dtype::f32);
    net.after = [&] { seen.copy_from(net.net.parameters()[0].gradient()); };
    Step step = step_of(net);
    for (int i = 0; i < 4; ++i) {
      if (captured) {
        step(x(), target());
      } else {
        Tape tape(context());
        net(tape, x(), target());
      }
    }
    return values_of(seen);
  };
  EXPECT_EQ(run(true), run(false));
}

class StepLong : public StepTest {};
INSTANTIATE_TEST_SUITE_P(Each, StepLong, kDevices, device_name);

TEST_P(StepLong, RunsTheSameForAHundredThousandCalls) {
  const auto run = [&](std::int64_t calls) {
    Training net = training();
    Step step = step_of(net);
    const Tensor input = x();
    const Tensor wanted = target();
    std::vector<double> losses;
    std::int64_t held = 0;
    std::int64_t system = 0;
    for (std::int64_t i = 0; i < calls; ++i) {
      step(input, wanted);
      if (i % 997 == 0) losses.push_back(step.loss(i));
      if (i == 100) {
        held = context().memory().in_use;
        system = context().memory().system_allocations;
      }
    }
    EXPECT_EQ(context().memory().in_use, held);
    EXPECT_EQ(context().memory().system_allocations, system);
    return losses;
  };
  const std::vector<double> losses = run(100000);
  EXPECT_EQ(run(100000), losses);
  EXPECT_LT(losses.back(), losses.front());
}

}  // namespace
}  // namespace fusegrad
