// What a step refuses, and that nothing is lost by it.
#include <utility>

#include "tests/autograd/step_fixture.h"

namespace fusegrad {
namespace {

using namespace fusegrad::test;

class StepRefusalTest : public StepFixture {};
INSTANTIATE_TEST_SUITE_P(Each, StepRefusalTest, kDevices, device_name);

TEST_P(StepRefusalTest, RefusesArgumentsThatDoNotFit) {
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

TEST_P(StepRefusalTest, RefusesOptionsAndFunctionsThatAreNone) {
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

TEST_P(StepRefusalTest, RefusesGradientsThatStay) {
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

TEST_P(StepRefusalTest, CountsACallThatLeftGradients) {
  const Mlp net(context(), {.widths = {16, 24, 8}, .seed = 1});
  Step step(context(), [&](Tape& tape, const Tensor& input, const Tensor& wanted) {
    const Var loss = mse_loss(net(tape.input(input)), wanted);
    tape.backward(loss);
    return loss;
  });
  EXPECT_THROW(step(x(), target()), StateError);
  const Tensor other = random_tensor(context(), {32, 16}, Dtype::f32, 3);
  const double second = step(other, target()).item();
  EXPECT_EQ(step.info().calls, 2);
  EXPECT_EQ(step.loss(1), second);
  EXPECT_NE(step.loss(0), second);
}

TEST_P(StepRefusalTest, DoesNotRepeatAGraphOfAnotherOptimizerStateOrOfFrozenParameters) {
  Training net = training();
  Step step = step_of(net);
  for (int i = 0; i < 3; ++i) step(x(), target());
  const OptimizerState state = net.optimizer.state();
  Training other = training();
  Step fresh = step_of(other);
  for (int i = 0; i < 3; ++i) fresh(x(), target());

  net.optimizer.load_state(state);
  const auto call = [&] { step(x(), target()); };
  if (on_gpu()) {
    expect_error<StateError>(call, "has loaded another state since the step was captured");
    step.reset();
  }
  for (int i = 0; i < 3; ++i) {
    call();
    fresh(x(), target());
  }
  EXPECT_EQ(all_values(net.net.parameters()), all_values(other.net.parameters()));

  net.net.parameters()[0].freeze();
  if (on_gpu()) {
    expect_error<StateError>(call, "\"0.weight\" was frozen since the step was captured");
    step.reset();
  }
  const std::vector<double> before = values_of(net.net.parameters()[0].master());
  for (int i = 0; i < 3; ++i) call();
  EXPECT_EQ(values_of(net.net.parameters()[0].master()), before);
}

TEST_P(StepRefusalTest, TapesFromBeforeACallAreStale) {
  Training net = training();
  Step step = step_of(net);
  for (int i = 0; i < 3; ++i) {
    Tape tape(context());
    const Var loss = mse_loss(net.net(tape.input(x())), target());
    step(x(), target());
    EXPECT_THROW(tape.backward(loss), StateError) << "call " << i;
  }
}

TEST_P(StepRefusalTest, CannotBeResetByItsOwnFunction) {
  Training net = training();
  Step step = step_of(net);
  for (const int calls : {0, 1}) {  // when it first runs, and when it is captured
    for (int i = 0; i < calls; ++i) step(x(), target());
    const std::vector<double> before = all_values(net.net.parameters());
    net.inside = [&](Tape&, const Var&) { step.reset(); };
    expect_error<StateError>([&] { step(x(), target()); }, "cannot be reset by a step function");
    net.inside = {};
    EXPECT_EQ(all_values(net.net.parameters()), before);
  }
  step.reset();
  step(x(), target());
}

TEST_P(StepRefusalTest, RefusesALossOfAnotherContext) {
  const Context other = context_on(GetParam());
  Tape elsewhere(other);
  const Var loss = elsewhere.input(Tensor::full(other, {}, Dtype::f32, 1));
  Step step(context(), [&](Tape&, const Tensor&) { return loss; });
  for (int i = 0; i < 3; ++i) {
    expect_error<DeviceError>([&] { step(x()); }, "must return a Var on the step's context");
  }
}

TEST_P(StepRefusalTest, AFailureAfterTheOptimizerLeavesNothingRunning) {
  if (!on_gpu()) GTEST_SKIP() << "a CPU runs the function";
  const Mlp net(context(), {.widths = {16, 1024, 1024, 8}, .seed = 1});
  const Mlp same(context(), {.widths = {16, 1024, 1024, 8}, .seed = 1});
  Adam optimizer(net.parameters(), {.learning_rate = 1e-2});
  Adam eager(same.parameters(), {.learning_rate = 1e-2});
  Step step(context(), [&](Tape& tape, const Tensor& x, const Tensor& target) {
    const Var loss = mse_loss(net(tape.input(x)), target);
    tape.backward(loss);
    optimizer.step();
    loss.value().item();
    return loss;
  });
  for (int i = 0; i < 10; ++i) {
    expect_error<StateError>([&] { step(x(2048), target(2048)); }, "a tensor was read");
    Tape tape(context());
    tape.backward(mse_loss(same(tape.input(x(2048))), target(2048)));
    eager.step();
    EXPECT_TRUE(all_values(net.parameters()) == all_values(same.parameters())) << "after " << i + 1;
  }
}

TEST_P(StepRefusalTest, RefusesWhatAGraphCannotRepeat) {
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

TEST_P(StepRefusalTest, RefusesWhatChangesFromCallToCall) {
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

TEST_P(StepRefusalTest, SettlesWhatItNeedsAndRefusesWhatNeverDoes) {
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

TEST_P(StepRefusalTest, RefusesToLookForGradientsThatAreNotFinite) {
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

}  // namespace
}  // namespace fusegrad
