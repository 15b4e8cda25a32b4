// Captured steps give the bits of the eager loop, for networks whose gradients are hard on the order of work.
#include <cmath>
#include <functional>
#include <utility>

#include "tests/autograd/step_fixture.h"
#include "tests/support/dtypes.h"

#include <fusegrad/fusegrad.h>

namespace fusegrad {
namespace {

using namespace fusegrad::test;

/// What a step function is made of: it records a loss of a network of its own on (x, target).
struct Network {
  ParameterSet parameters;
  std::function<void(Tape&, const Tensor& x, const Tensor& target, std::vector<Var>& losses)> record;
};

constexpr std::int64_t kWidth = 24;
constexpr std::int64_t kBatch = 40;
// Products that fill a GPU: their weight gradients run beside the pass that follows the input gradient.
constexpr std::int64_t kWide = 128;
constexpr std::int64_t kLargeBatch = 4096;
// Products that fill it for so long that they leave multiprocessors to the optimizer.
constexpr std::int64_t kHuge = 4096;

Parameter add(ParameterSet& set, std::string name, const Shape& shape, std::uint32_t seed) {
  return set.add(std::move(name), shape, [seed](std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] =
          (static_cast<float>(philox({static_cast<std::uint32_t>(i), 1, seed, 0}, {7, 0})[0] >> 8) * 0x1p-23f - 1) / 4;
    }
  });
}

template <std::int64_t width>
Network chain(const Context& context, Dtype dtype) {
  const Mlp net(context, {.widths = {16, width, width, width, 8}, .dtype = dtype, .seed = 3});
  return {net.parameters(), [net](Tape& tape, const Tensor& x, const Tensor& target, std::vector<Var>& losses) {
            losses.push_back(mse_loss(net(tape.input(x)), target));
            tape.backward(losses.back());
          }};
}

/// Every gradient has more than one contribution: one weight and bias for three layers, a residual join, a fan-out.
template <std::int64_t width>
Network shared(const Context& context, Dtype dtype) {
  ParameterSet set(context, dtype);
  const Parameter in = add(set, "in", {width, 16}, 1);
  const Parameter w = add(set, "w", {width, width}, 2);
  const Parameter b = add(set, "b", {width}, 3);
  const Parameter out = add(set, "out", {8, width}, 4);
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

/// The value of a weight is a constant of a layer that was recorded before the weight is used.
Network tied(const Context& context, Dtype dtype) {
  ParameterSet set(context, dtype);
  const Parameter in = add(set, "in", {kWidth, 16}, 1);
  const Parameter w = add(set, "w", {kWidth, kWidth}, 2);
  const Parameter out = add(set, "out", {8, kWidth}, 3);
  return {set, [=](Tape& tape, const Tensor& x, const Tensor& target, std::vector<Var>& losses) {
            const Var h = linear(tape.input(x), tape.parameter(in), {.activation = Activation::relu});
            const Var g = linear(h, tape.input(w.value()));
            losses.push_back(mse_loss(linear(linear(g, tape.parameter(w)), tape.parameter(out)), target));
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
constexpr std::pair<const char*, MakeNetwork> kNetworks[] = {{"chain", chain<kWidth>},
                                                             {"shared", shared<kWidth>},
                                                             {"accumulating", accumulating},
                                                             {"computed", computed},
                                                             {"tied", tied}};

/// Trains for `steps` steps with changing batches and learning rates, and returns losses and parameters.
struct Trained {
  std::vector<double> losses;
  std::vector<double> values;
  bool operator==(const Trained&) const = default;
};

enum class Way { eager, step, branches };

Trained train(const Context& context, Dtype dtype, MakeNetwork make, Way way, int steps, std::int64_t batch = kBatch) {
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
    const Tensor x = random_tensor(context, {batch, 16}, dtype, stream);
    const Tensor target = random_tensor(context, {batch, 8}, accumulation_dtype(dtype), stream + 1000);
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
    EXPECT_EQ(train(device_context(options), dtype(), shared<kWidth>, Way::branches, 5),
              train(device_context(options), dtype(), shared<kWidth>, Way::eager, 5));
  }
}

TEST_P(StepEqualsEagerTest, AlsoWhereProductsFillTheGpu) {
  for (const Strategy strategy : {Strategy::epilogue, Strategy::split, Strategy::pass}) {
    if (device() == DeviceType::cpu && strategy != Strategy::pass) continue;  // a CPU has one way
    SCOPED_TRACE(name_of(strategy));
    const ContextOptions options{.strategy = strategy, .plans = PlanPolicy::heuristic};
    for (const MakeNetwork make : {chain<kWide>, shared<kWide>}) {
      EXPECT_EQ(train(device_context(options), dtype(), make, Way::branches, 6, kLargeBatch),
                train(device_context(options), dtype(), make, Way::eager, 6, kLargeBatch));
    }
  }
}

TEST_P(StepEqualsEagerTest, AlsoWhereProductsLeaveRoomForTheOptimizer) {
  if (device() == DeviceType::cpu) GTEST_SKIP() << "a CPU has no branches";
  const ContextOptions options{.plans = PlanPolicy::heuristic};
  const Trained eager = train(device_context(options), dtype(), chain<kHuge>, Way::eager, 4, kLargeBatch);
  const Trained beside = train(device_context(options), dtype(), chain<kHuge>, Way::branches, 4, kLargeBatch);
  EXPECT_TRUE(beside == eager) << "loss " << beside.losses.back() << ", eager " << eager.losses.back();
}

}  // namespace
}  // namespace fusegrad
