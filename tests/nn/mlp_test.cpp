#include <memory>
#include <optional>

#include <gmock/gmock.h>

#include "tests/nn/module_test.h"
#include "tests/support/device.h"
#include "tests/support/tolerance.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/nn/mlp.h>
#include <fusegrad/ops/arithmetic.h>
#include <fusegrad/ops/linear.h>
#include <fusegrad/ops/mse_loss.h>
#include <fusegrad/ops/softmax_cross_entropy.h>
#include <fusegrad/optim/adam.h>
#include <fusegrad/optim/sgd.h>

namespace fusegrad {
namespace {

using namespace fusegrad::test;

std::vector<std::vector<double>> masters_of(const ParameterSet& set) {
  std::vector<std::vector<double>> masters;
  for (const Parameter& parameter : set) masters.push_back(elements_of(parameter.master()));
  return masters;
}

class MlpTest : public EachDevice {
 protected:
  /// The test's context, made by the first call.
  const Context& context() {
    if (!context_) context_ = device_context({.threads = 2});
    return *context_;
  }

 private:
  std::optional<Context> context_;
};
FUSEGRAD_EACH_DEVICE(MlpTest);

TEST_P(MlpTest, NamesAndShapesItsParameters) {
  const Mlp net(context(), {.widths = {4, 8, 3, 2}, .dtype = dtype()});
  EXPECT_EQ(names_of(net.parameters()),
            (std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"}));
  EXPECT_EQ(net.parameters()["0.weight"].shape(), Shape({8, 4}));
  EXPECT_EQ(net.parameters()["1.weight"].shape(), Shape({3, 8}));
  EXPECT_EQ(net.parameters()["2.bias"].shape(), Shape({2}));
  EXPECT_EQ(net.parameters().dtype(), dtype());
  EXPECT_EQ(net.parameters().value_count(), 4 * 8 + 8 + 8 * 3 + 3 + 3 * 2 + 2);
  EXPECT_EQ(net.layers().size(), 3u);
}

TEST_P(MlpTest, IsAChainOfFusedLinears) {
  const Mlp net(context(), {.widths = {6, 9, 7, 4},
                            .activation = Activation::gelu_tanh,
                            .output_activation = Activation::relu,
                            .dtype = dtype(),
                            .seed = 3});
  const ParameterSet& set = net.parameters();
  for (std::size_t i = 1; i < set.size(); i += 2) set[i].assign(random_tensor(context(), set[i].shape(), dtype(), i));
  const Tensor x = random_tensor(context(), {5, 6}, dtype(), 1);
  const Tensor seed = random_tensor(context(), {5, 4}, dtype(), 2);

  Tape tape(context());
  const Var y = net(tape.input(x));
  const std::vector<double> outputs = elements_of(y.value());
  tape.backward(y, seed);
  std::vector<std::vector<double>> gradients;
  for (const Parameter& parameter : set) gradients.push_back(elements_of(parameter.gradient()));
  set.clear_gradients();

  Tape by_hand(context());
  Var h = by_hand.input(x);
  for (int i = 0; i < 3; ++i) {
    const auto at = static_cast<std::size_t>(2 * i);
    h = linear(h, by_hand.parameter(set[at]), by_hand.parameter(set[at + 1]),
               {.activation = i < 2 ? Activation::gelu_tanh : Activation::relu});
  }
  EXPECT_EQ(outputs, elements_of(h.value()));
  by_hand.backward(h, seed);
  for (std::size_t i = 0; i < set.size(); ++i) {
    EXPECT_EQ(gradients[i], elements_of(set[i].gradient())) << set[i].name();
  }
}

TEST_P(MlpTest, WorksWithoutBiases) {
  const Mlp net(context(), {.widths = {3, 5, 2}, .bias = false, .dtype = dtype()});
  EXPECT_EQ(names_of(net.parameters()), (std::vector<std::string>{"0.weight", "1.weight"}));
  Tape tape(context());
  const Var y = net(tape.input(Tensor::zeros(context(), {2, 3}, dtype())));
  EXPECT_EQ(elements_of(y.value()), std::vector<double>(4, 0.0)) << "no bias: 0 stays 0";
  AdamW optimizer(net.parameters());
  tape.backward(y, random_tensor(context(), {2, 2}, dtype(), 1));
  EXPECT_EQ(optimizer.step().stepped, 2);
}

TEST_P(MlpTest, JoinsASetTwice) {
  ParameterSet set(context(), dtype());
  const Mlp encoder(set, "encoder", {.widths = {2, 4, 2}});
  const Mlp decoder(set, "decoder", {.widths = {2, 4, 2}});
  EXPECT_EQ(set.size(), 8u);
  EXPECT_EQ(set["encoder.1.bias"].shape(), Shape({2}));
  EXPECT_NE(elements_of(set["encoder.0.weight"].value()), elements_of(set["decoder.0.weight"].value()))
      << "equal seeds, but other parameters of the set";
  Sgd optimizer(set, {.learning_rate = 0.1});
  Tape tape(context());
  const Var y = decoder(encoder(tape.input(random_tensor(context(), {3, 2}, dtype(), 1))));
  tape.backward(y, random_tensor(context(), {3, 2}, dtype(), 2));
  EXPECT_EQ(optimizer.step().stepped, 8);
}

TEST_P(MlpTest, MayRunTwiceOnOneTape) {
  const Mlp net(context(), {.widths = {2, 1}, .dtype = dtype()});
  net.parameters()["0.weight"].assign(make_tensor_of(context(), {1, 2}, dtype(), {1, 2}));
  Tape tape(context());
  const Var a = net(tape.input(make_tensor_of(context(), {1, 2}, dtype(), {1, 2})));
  const Var b = net(tape.input(make_tensor_of(context(), {1, 2}, dtype(), {4, 8})));
  tape.backward(add(a, b), make_tensor_of(context(), {1, 1}, dtype(), {1}));
  EXPECT_EQ(elements_of(net.parameters()["0.weight"].gradient()), (std::vector<double>{5, 10}));
  EXPECT_EQ(elements_of(net.parameters()["0.bias"].gradient()), std::vector<double>{2});
}

TEST_P(MlpTest, LeavesFrozenLayersAlone) {
  const Mlp net(context(), {.widths = {3, 4, 2}, .dtype = dtype()});
  net.layers()[0].weight().freeze();
  net.layers()[0].bias().freeze();
  const std::vector<std::vector<double>> before = masters_of(net.parameters());
  AdamW optimizer(net.parameters());
  Tape tape(context());
  const Var y = net(tape.input(random_tensor(context(), {5, 3}, dtype(), 1)));
  tape.backward(y, random_tensor(context(), {5, 2}, dtype(), 2));
  const StepReport report = optimizer.step();
  EXPECT_EQ(report.stepped, 2);
  EXPECT_EQ(report.skipped, 2);
  const std::vector<std::vector<double>> after = masters_of(net.parameters());
  EXPECT_EQ(after[0], before[0]);
  EXPECT_EQ(after[1], before[1]);
  EXPECT_NE(after[2], before[2]);
  EXPECT_NE(after[3], before[3]);
}

TEST_P(MlpTest, ParametersOutliveTheNetwork) {
  auto net = std::make_unique<Mlp>(context(), MlpOptions{.widths = {2, 3, 1}, .dtype = dtype()});
  AdamW optimizer(net->parameters());
  const Mlp moved = std::move(*net);
  Tape tape(context());
  const Var x = tape.input(random_tensor(context(), {4, 2}, dtype(), 1));
  EXPECT_THROW((*net)(x), StateError) << "it was moved from";
  net.reset();
  const std::vector<std::vector<double>> before = masters_of(moved.parameters());
  const Var y = moved(x);
  tape.backward(y, random_tensor(context(), {4, 1}, dtype(), 2));
  EXPECT_EQ(optimizer.step().stepped, 4);
  EXPECT_NE(masters_of(moved.parameters()), before);

  ParameterSet kept = [&] { return Mlp(context(), {.widths = {2, 2}, .dtype = dtype()}).parameters(); }();
  EXPECT_EQ(elements_of(kept["0.bias"].value()), (std::vector<double>{0, 0}));
}

TEST_P(MlpTest, LearnsExclusiveOr) {
  const Tensor x = make_tensor_of(context(), {4, 2}, dtype(), {0, 0, 0, 1, 1, 0, 1, 1});
  const Tensor labels = Tensor::from<std::int32_t>(context(), {4}, {0, 1, 1, 0});
  const Mlp net(context(), {.widths = {2, 16, 16, 2}, .dtype = dtype(), .seed = 1});
  AdamW optimizer(net.parameters(), {.learning_rate = 0.02});
  double first = 0;
  double last = 0;
  for (int step = 0; step < 150; ++step) {
    Tape tape(context());
    const Var loss = softmax_cross_entropy(net(tape.input(x)), labels);
    last = loss.item();
    if (step == 0) first = last;
    tape.backward(loss, {.loss_scale = dtype() == Dtype::f16 ? 1024.0 : 1.0});
    ASSERT_TRUE(optimizer.step().applied);
  }
  EXPECT_GT(first, 0.4);
  EXPECT_LT(last, 0.01);
}

TEST(MlpTrainingTest, ReachesAKnownLoss) {
  // The figure is that of a plain scalar program of its own: Philox draws, loops for the network, Adam, in fp64.
  std::vector<double> losses;
  for (const int threads : {1, 2, 4}) {
    for (const Fusion fusion : {Fusion::on, Fusion::off}) {
      const Context context = Context::cpu({.threads = threads, .fusion = fusion});
      const Tensor x = random_tensor(context, {16, 3}, Dtype::f64, 1);
      const Tensor target = random_tensor(context, {16, 2}, Dtype::f64, 2);
      const Mlp net(context, {.widths = {3, 12, 8, 2}, .activation = Activation::gelu_tanh, .dtype = Dtype::f64});
      Adam optimizer(net.parameters(), {.learning_rate = 0.01});
      double last = 0;
      for (int step = 0; step < 120; ++step) {
        Tape tape(context);
        const Var loss = mse_loss(net(tape.input(x)), target);
        last = loss.item();
        tape.backward(loss);
        optimizer.step();
      }
      if (fusion == Fusion::on) losses.push_back(last);
      EXPECT_NEAR(last, 0.0487221522565896, 1e-12) << threads << " threads";
    }
  }
  EXPECT_EQ(losses[1], losses[0]);
  EXPECT_EQ(losses[2], losses[0]);
}

/// A whole step of a two-layer network, known in closed form.
class WholeStepTest : public testing::TestWithParam<std::tuple<DeviceType, Dtype, Fusion>> {
 protected:
  void SetUp() override { skip_without(std::get<0>(GetParam())); }

  static void expect_near(const Tensor& tensor, const std::vector<double>& expected, const char* what) {
    const std::vector<double> values = elements_of(tensor);
    ASSERT_EQ(values.size(), expected.size()) << what;
    for (std::size_t i = 0; i < values.size(); ++i)
      EXPECT_NEAR(values[i], expected[i], bound(expected[i])) << what << i;
  }
  /// fp32: every figure is the result of fewer than 10 roundings of numbers below 2.
  static double bound(double expected) {
    return std::get<1>(GetParam()) == Dtype::f64 ? closed_form(expected) : 20 * 0x1p-24;
  }
};
INSTANTIATE_TEST_SUITE_P(All, WholeStepTest,
                         testing::Combine(kDevices, testing::Values(Dtype::f64, Dtype::f32),
                                          testing::Values(Fusion::on, Fusion::off)),
                         [](const auto& each) {
                           return to_string(std::get<0>(each.param)) + "_" +
                                  std::string(name_of(std::get<1>(each.param))) +
                                  (std::get<2>(each.param) == Fusion::on ? "_fused" : "_unfused");
                         });

TEST_P(WholeStepTest, HasTheFiguresOfTheClosedForm) {
  const auto [device, dtype, fusion] = GetParam();
  const Context context = context_on(device, {.threads = 2, .fusion = fusion});
  const Mlp net(context, {.widths = {2, 3, 2}, .dtype = dtype});
  const ParameterSet& set = net.parameters();
  set["0.weight"].assign(make_tensor_of(context, {3, 2}, dtype, {0.5, -0.5, 1, 0.25, -1, 0.5}));
  set["0.bias"].assign(make_tensor_of(context, {3}, dtype, {0, -0.5, 0.25}));
  set["1.weight"].assign(make_tensor_of(context, {2, 3}, dtype, {1, -1, 0.5, 0.5, 1, -0.5}));
  set["1.bias"].assign(make_tensor_of(context, {2}, dtype, {0.1, -0.1}));
  const Tensor x = make_tensor_of(context, {2, 2}, dtype, {1, -1, 0.5, 2});
  const Tensor labels = Tensor::from<std::int32_t>(context, {2}, {0, 1});
  Sgd optimizer(set, {.learning_rate = 0.1});

  Tape tape(context);
  const Var input = tape.variable(x);
  const Var logits = net(input);
  tape.keep(logits);
  tape.retain_gradient(logits);
  const Var loss = softmax_cross_entropy(logits, labels);
  EXPECT_NEAR(loss.item(), 0.63329925869743906692, bound(0.63));
  tape.backward(loss);
  expect_near(logits.value(), {0.85, 0.65, -0.025, 0.025}, "Z2 ");
  expect_near(tape.gradient(logits),
              {-0.22508300134376104572, 0.22508300134376104572, 0.24375130175789482817, -0.24375130175789482817},
              "dZ2 ");
  expect_near(set["1.weight"].gradient(),
              {-0.22508300134376104572, 0.065604900543007152655, 0.18281347631842112113, 0.22508300134376104572,
               -0.065604900543007152655, -0.18281347631842112113},
              "dW2 ");
  expect_near(set["1.bias"].gradient(), {0.018668300414133782449, -0.018668300414133782449}, "db2 ");
  expect_near(set["0.weight"].gradient(),
              {-0.11254150067188052286, 0.11254150067188052286, 0.20641470092962726327, -1.4251712097191014041,
               0.12187565087894741408, 0.48750260351578965634},
              "dW1 ");
  expect_near(set["0.bias"].gradient(), {-0.11254150067188052286, -0.037336600828267564898, 0.24375130175789482817},
              "db1 ");
  expect_near(tape.gradient(input), {0.39389525235158183001, 0.16881225100782078429, -0.73125390527368448451, 0},
              "dX ");

  optimizer.step();
  expect_near(set["0.weight"].value(),
              {0.51125415006718805229, -0.51125415006718805229, 0.97935852990703727367, 0.39251712097191014041,
               -1.0121875650878947414, 0.45124973964842103437},
              "W1 ");
  expect_near(set["0.bias"].value(), {0.011254150067188052286, -0.49626633991717324351, 0.22562486982421051718}, "b1 ");
  expect_near(set["1.weight"].value(),
              {1.0225083001343761046, -1.0065604900543007153, 0.48171865236815788789, 0.47749169986562389543,
               1.0065604900543007153, -0.48171865236815788789},
              "W2 ");
  expect_near(set["1.bias"].value(), {0.098133169958586621755, -0.098133169958586621755}, "b2 ");
  Tape after(context, Mode::inference);
  EXPECT_NEAR(softmax_cross_entropy(net(after.input(x)), labels).item(), 0.41279030949184652108, bound(0.41));
}

TEST(MlpOptionsTest, EqualSeedsGiveEqualBits) {
  const auto masters = [](std::uint64_t seed, Dtype dtype, int threads) {
    return masters_of(
        Mlp(Context::cpu({.threads = threads}), {.widths = {4, 8, 3}, .dtype = dtype, .seed = seed}).parameters());
  };
  EXPECT_EQ(masters(1, Dtype::f32, 1), masters(1, Dtype::f32, 4));
  EXPECT_EQ(masters(1, Dtype::f32, 1), masters(1, Dtype::bf16, 1));
  EXPECT_NE(masters(1, Dtype::f32, 1), masters(2, Dtype::f32, 1));
}

TEST(MlpOptionsTest, DrawsHiddenLayersByHeAndTheOutputByXavier) {
  const Mlp net(Context::cpu({.threads = 1}), {.widths = {100, 200, 50}});
  const auto largest = [&](const char* name) {
    double result = 0;
    for (const double weight : elements_of(net.parameters()[name].value())) {
      result = std::max(result, std::fabs(weight));
    }
    return result;
  };
  EXPECT_NEAR(largest("0.weight"), std::sqrt(6.0 / 100), 1e-3);
  EXPECT_NEAR(largest("1.weight"), std::sqrt(6.0 / 250), 1e-3);
}

TEST(MlpOptionsTest, MistakesAreNamedAndLeaveTheSetAsItWas) {
  const Context context = Context::cpu({.threads = 1});
  EXPECT_THROW(Mlp(context, {}), ValueError);
  EXPECT_THROW(Mlp(context, {.widths = {3}}), ValueError);
  EXPECT_THROW(Mlp(context, {.widths = {3, 2}, .dtype = Dtype::u8}), DtypeError);
  try {
    Mlp net(context, {.widths = {3, 0, 2}});
    FAIL() << "a width of 0 was accepted";
  } catch (const ValueError& error) {
    EXPECT_STREQ(error.what(), "mlp: every width must be at least 1, number 1 is 0");
  }

  ParameterSet set(context);
  set.add("a.1.bias", {1}, constant(0));
  EXPECT_THROW(Mlp(set, "a", {.widths = {1, 1, 1}}), ValueError) << "a.1.bias is taken";
  EXPECT_THROW(Mlp(set, "b", {.widths = {1, std::int64_t{1} << 40, std::int64_t{1} << 40}}), ShapeError);
  EXPECT_THROW(Mlp(set, std::string(250, 'c'), {.widths = {1, 1, 1}}), ValueError);
  EXPECT_EQ(names_of(set), std::vector<std::string>{"a.1.bias"});
  EXPECT_EQ(set.value_count(), 1);
  const Mlp net(set, "a", {.widths = {1, 1}});
  EXPECT_EQ(set.size(), 3u);
  EXPECT_EQ(elements_of(set["a.1.bias"].value()), std::vector<double>{0});
  EXPECT_THROW(Mlp(set, "d", {.widths = {1, 1}}), StateError) << "the set is in use";
}

TEST(MlpOptionsTest, AnInputThatDoesNotFitIsNamed) {
  const Context context = Context::cpu({.threads = 1});
  const Mlp net(context, {.widths = {3, 2}});
  Tape tape(context);
  const auto apply = [&](const Shape& shape, Dtype dtype) {
    return [&net, x = tape.input(Tensor::zeros(context, shape, dtype))] { net(x); };
  };
  using testing::ThrowsMessage;
  EXPECT_THAT(apply({4, 5}, Dtype::f32),
              ThrowsMessage<ShapeError>("mlp: x must be [batch, 3] (3 = the network's first width), got [4, 5]"));
  EXPECT_THAT(apply({3}, Dtype::f32),
              ThrowsMessage<ShapeError>("mlp: x must be [batch, 3] (3 = the network's first width), got [3]"));
  EXPECT_THAT(apply({4, 3}, Dtype::bf16),
              ThrowsMessage<DtypeError>("mlp: x must be f32 as the network's parameters are, got bf16"));
  EXPECT_THROW(net(Var()), StateError);
  EXPECT_EQ(tape.size(), 3) << "nothing was recorded but the inputs";
  EXPECT_NO_THROW(apply({2, 4, 3}, Dtype::f32)());
}

}  // namespace
}  // namespace fusegrad
