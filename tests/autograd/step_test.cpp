#include <cmath>
#include <memory>
#include <utility>

#include "tests/autograd/step_fixture.h"
#include "tests/support/allocations.h"

namespace fusegrad {
namespace {

using namespace fusegrad::test;

class StepTest : public StepFixture {};
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

TEST_P(StepTest, TakesItsOwnTensorsInAnotherOrder) {
  Step step(context(), [](Tape& tape, const Tensor& a, const Tensor& b) { return sub(tape.input(a), tape.input(b)); },
            {.mode = Mode::inference});
  const Shape shape{3};
  std::vector<Tensor> inputs = step.inputs({{shape, Dtype::f32}, {shape, Dtype::f32}});
  for (int i = 0; i < 4; ++i) {
    inputs[0].copy_from(std::vector<float>{1, 2, 3});
    inputs[1].copy_from(std::vector<float>{10, 20, 30});
    EXPECT_EQ(values_of(step(inputs[1], inputs[0])), (std::vector<double>{9, 18, 27})) << "call " << i;
  }
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

TEST_P(StepTest, ProductsThatFillTheGpuLeaveRoomForAnOptimizerThatFollows) {
  if (!on_gpu()) GTEST_SKIP() << "a CPU has no branches";
  constexpr std::int64_t kWidth = 4096;
  const Mlp net(context(), {.widths = {16, kWidth, kWidth, kWidth, 8}, .dtype = Dtype::bf16, .seed = 1});
  const std::string room = "may leave multiprocessors to optimizers";
  for (const bool optimizes : {false, true}) {
    Adam optimizer(net.parameters(), {.learning_rate = 1e-3});
    std::string explained;
    Step step(context(), [&](Tape& tape, const Tensor& x, const Tensor& target) {
      const Var loss = mse_loss(net(tape.input(x)), target);
      tape.backward(loss);
      if (optimizes) optimizer.step();
      if (!optimizes) net.parameters().clear_gradients();
      explained = tape.explain();
      return loss;
    });
    const Tensor x = random_tensor(context(), {kWidth, 16}, Dtype::bf16, 1);
    const Tensor target = random_tensor(context(), {kWidth, 8}, Dtype::f32, 2);
    step(x, target);
    EXPECT_THAT(explained, testing::Not(testing::HasSubstr(room))) << "it is not known yet what follows";
    step(x, target);
    if (optimizes) {
      EXPECT_THAT(explained, testing::HasSubstr(room));
    } else {
      EXPECT_THAT(explained, testing::Not(testing::HasSubstr(room)));
    }
  }
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
