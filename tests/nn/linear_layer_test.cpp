#include <optional>

#include "tests/nn/module_test.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/nn/linear_layer.h>
#include <fusegrad/ops/linear.h>

namespace fusegrad {
namespace {

using namespace fusegrad::test;

class LinearLayerTest : public EachDevice {
 protected:
  /// The test's context, made by the first call.
  const Context& context() {
    if (!context_) context_ = device_context({.threads = 2});
    return *context_;
  }

 private:
  std::optional<Context> context_;
};
FUSEGRAD_EACH_DEVICE(LinearLayerTest);

TEST_P(LinearLayerTest, NamesAndShapesItsParameters) {
  const LinearLayer layer(context(), {.in = 3, .out = 5, .dtype = dtype()});
  EXPECT_EQ(names_of(layer.parameters()), (std::vector<std::string>{"weight", "bias"}));
  EXPECT_EQ(layer.weight().shape(), Shape({5, 3}));
  EXPECT_EQ(layer.bias().shape(), Shape({5}));
  EXPECT_EQ(layer.weight().dtype(), dtype());
  EXPECT_EQ(elements_of(layer.bias().value()), std::vector<double>(5, 0.0));
}

TEST_P(LinearLayerTest, ComputesTheFusedAffineMap) {
  for (const Activation activation :
       {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf}) {
    for (const bool bias : {true, false}) {
      const LinearLayer layer(context(), {.in = 7, .out = 9, .activation = activation, .bias = bias, .dtype = dtype()});
      if (bias) layer.bias().assign(random_tensor(context(), {9}, dtype(), 1));
      const Tensor x = random_tensor(context(), {4, 7}, dtype(), 2);
      Tape tape(context());
      const Var y = layer(tape.input(x));
      const Var w = tape.parameter(layer.weight());
      const LinearOptions options{.activation = activation};
      const Var expected =
          bias ? linear(tape.input(x), w, tape.parameter(layer.bias()), options) : linear(tape.input(x), w, options);
      EXPECT_EQ(elements_of(y.value()), elements_of(expected.value())) << name_of(activation) << ", bias " << bias;
      EXPECT_EQ(layer.bias().defined(), bias);
      EXPECT_EQ(layer.parameters().size(), bias ? 2u : 1u);
    }
  }
}

TEST_P(LinearLayerTest, GivesItsParametersGradients) {
  const LinearLayer layer(context(), {.in = 2, .out = 1, .dtype = dtype()});
  Tape tape(context());
  const Var y = layer(tape.input(make_tensor_of(context(), {2, 2}, dtype(), {1, 2, 3, 5})));
  tape.backward(y, make_tensor_of(context(), {2, 1}, dtype(), {1, -2}));
  EXPECT_EQ(elements_of(layer.weight().gradient()), (std::vector<double>{-5, -8}));
  EXPECT_EQ(elements_of(layer.bias().gradient()), std::vector<double>{-1});
}

TEST_P(LinearLayerTest, RunsOnAnInferenceTape) {
  const LinearLayer layer(context(), {.in = 2, .out = 3, .activation = Activation::relu, .dtype = dtype()});
  Tape tape(context(), Mode::inference);
  const Var y = layer(tape.input(random_tensor(context(), {4, 2}, dtype(), 1)));
  EXPECT_EQ(y.shape(), Shape({4, 3}));
  EXPECT_FALSE(y.needs_gradient());
}

TEST(LinearLayerOptionsTest, DrawsWeightsByTheActivation) {
  const Context context = Context::cpu({.threads = 1});
  const auto largest = [&](const LinearLayerOptions& options) {
    const LinearLayer layer(context, options);
    double largest = 0;
    for (const double weight : elements_of(layer.weight().value())) largest = std::max(largest, std::fabs(weight));
    return largest;
  };
  const double he = std::sqrt(6.0 / 100);
  const double xavier = std::sqrt(6.0 / 300);
  for (const Activation activation : {Activation::relu, Activation::gelu_tanh, Activation::gelu_erf}) {
    EXPECT_NEAR(largest({.in = 100, .out = 200, .activation = activation}), he, 1e-3 * he);
  }
  EXPECT_NEAR(largest({.in = 100, .out = 200}), xavier, 1e-3 * xavier);
  EXPECT_NEAR(largest({.in = 100, .out = 200, .initialization = Initialization::he_uniform}), he, 1e-3 * he);
  EXPECT_GT(largest({.in = 100, .out = 200, .initialization = Initialization::he_normal}), he);
}

TEST(LinearLayerOptionsTest, EqualSeedsGiveEqualBits) {
  const auto weights = [](std::uint64_t seed, Dtype dtype) {
    const LinearLayer layer(Context::cpu({.threads = 1}), {.in = 10, .out = 20, .dtype = dtype, .seed = seed});
    return elements_of(layer.weight().master());
  };
  EXPECT_EQ(weights(5, Dtype::f32), weights(5, Dtype::f32));
  EXPECT_EQ(weights(5, Dtype::f32), weights(5, Dtype::bf16)) << "masters are the same draws";
  EXPECT_EQ(weights(5, Dtype::f32), weights(5, Dtype::f64));
  EXPECT_NE(weights(5, Dtype::f32), weights(6, Dtype::f32));
}

TEST(LinearLayerOptionsTest, JoinsASet) {
  ParameterSet set(Context::cpu({.threads = 1}), Dtype::bf16);
  const LinearLayer first(set, "first", {.in = 4, .out = 4});
  const LinearLayer second(set, "second", {.in = 4, .out = 4, .bias = false, .dtype = Dtype::bf16});
  const LinearLayer bare(set, "", {.in = 1, .out = 1});
  EXPECT_EQ(names_of(set), (std::vector<std::string>{"first.weight", "first.bias", "second.weight", "weight", "bias"}));
  EXPECT_EQ(first.parameters(), set);
  EXPECT_NE(elements_of(first.weight().value()), elements_of(second.weight().value()))
      << "layers of one seed must not be copies of each other";
}

TEST(LinearLayerOptionsTest, MistakesAreNamedAndLeaveTheSetAsItWas) {
  const Context context = Context::cpu({.threads = 1});
  EXPECT_THROW(LinearLayer(context, {.in = 0, .out = 1}), ValueError);
  EXPECT_THROW(LinearLayer(context, {.in = 1, .out = 0}), ValueError);
  EXPECT_THROW(LinearLayer(context, {.in = 1, .out = -1}), ValueError);
  EXPECT_THROW(LinearLayer(context, {.in = 1, .out = 1, .dtype = Dtype::i32}), DtypeError);

  ParameterSet set(context);
  set.add("a.bias", {1}, constant(0));
  EXPECT_THROW(LinearLayer(set, "a", {.in = 1, .out = 1}), ValueError) << "a.bias is taken";
  EXPECT_THROW(LinearLayer(set, "b", {.in = 1, .out = 1, .dtype = Dtype::f64}), DtypeError);
  EXPECT_THROW(LinearLayer(set, std::string(256, 'c'), {.in = 1, .out = 1}), ValueError);
  EXPECT_EQ(names_of(set), std::vector<std::string>{"a.bias"});
  const LinearLayer layer(set, "b", {.in = 1, .out = 1});
  EXPECT_EQ(layer.weight().value().size(), 1);
  EXPECT_THROW(LinearLayer(set, "d", {.in = 1, .out = 1}), StateError) << "the set is in use";
}

TEST(LinearLayerOptionsTest, InputsThatDoNotFitAreRefused) {
  const Context context = Context::cpu({.threads = 1});
  const LinearLayer layer(context, {.in = 3, .out = 2});
  Tape tape(context);
  EXPECT_THROW(layer(tape.input(Tensor::zeros(context, {4, 2}, Dtype::f32))), ShapeError);
  EXPECT_THROW(layer(tape.input(Tensor::zeros(context, {4, 3}, Dtype::f64))), DtypeError);
  EXPECT_THROW(layer(Var()), StateError);
  const Context elsewhere = Context::cpu({.threads = 1});
  Tape other(elsewhere);
  EXPECT_THROW(layer(other.input(Tensor::zeros(elsewhere, {4, 3}, Dtype::f32))), DeviceError);
}

}  // namespace
}  // namespace fusegrad
