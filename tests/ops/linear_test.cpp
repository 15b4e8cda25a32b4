// The fused linear op against closed forms: every value below is exact in each dtype, so results are compared with ==.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/ops/linear_cases.h"
#include "tests/support/device.h"
#include "tests/support/tensors.h"

#include <fusegrad/autograd/execution.h>
#include <fusegrad/fusegrad.h>

namespace fusegrad {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

using test::LinearCase;

class LinearTest : public testing::TestWithParam<LinearCase> {
 protected:
  void SetUp() override { test::skip_without(GetParam().device); }

  Tensor make(const Shape& shape, const std::vector<double>& values) const {
    return make_tensor(context, shape, values, GetParam().dtype);
  }

  Context context = GetParam().context();
  bool fused = GetParam().fusion == Fusion::on;
  /// The bias gradient of an absorbed activation is made by the consumer, except by the strategy that leaves it.
  bool absorbs_bias = fused && GetParam().strategy != Strategy::split;
};

INSTANTIATE_TEST_SUITE_P(All, LinearTest, testing::ValuesIn(test::linear_cases()), test::name_of_case);

/// X, W, b and dA of the first closed-form case, with two pre-activations that are exactly zero.
struct ZeroPreactivations {
  std::vector<double> x{1, 2, -1, 0, -2, 3};
  std::vector<double> w{1, -1, 2, 2, 1, 4, 0.5, 1, 1};
  std::vector<double> b{3, 0, -2};
  std::vector<double> da{1, 2, 4, 8, 16, 32};
  std::vector<double> dw{1, -14, 23, 2, -28, 46, 0, 0, 0};
  std::vector<double> db{9, 18, 0};
  std::vector<double> dx{5, 1, 10, 40, 8, 80};
};

TEST_P(LinearTest, ReluIsOpenAtExactlyZero) {
  const ZeroPreactivations c;
  Tape tape(context);
  const Var x = tape.variable(make({2, 3}, c.x));
  const Var w = tape.variable(make({3, 3}, c.w));
  const Var b = tape.variable(make({3}, c.b));
  const Var a = linear(x, w, b, {.activation = Activation::relu});
  EXPECT_THAT(values_of(a.value()), ElementsAre(0, 0, 0, 11, 10, 0));
  tape.backward(a, make({2, 3}, c.da));
  EXPECT_THAT(values_of(tape.gradient(w)), ElementsAreArray(c.dw));
  EXPECT_THAT(values_of(tape.gradient(b)), ElementsAreArray(c.db));
  EXPECT_THAT(values_of(tape.gradient(x)), ElementsAreArray(c.dx));
}

TEST_P(LinearTest, AccumulatesIntoExistingGradients) {
  const ZeroPreactivations c;
  ParameterSet set(context, GetParam().dtype);
  const Parameter w = set.add("w", {3, 3}, fill_with(c.w));
  const Parameter b = set.add("b", {3}, fill_with(c.b));
  const auto backward = [&](double factor) {
    Tape tape(context);
    const Var a =
        linear(tape.input(make({2, 3}, c.x)), tape.parameter(w), tape.parameter(b), {.activation = Activation::relu});
    tape.backward(a, make({2, 3}, scaled(c.da, factor)));
  };
  backward(1);
  backward(1);
  EXPECT_EQ(w.gradient().dtype(), accumulation_dtype(GetParam().dtype));
  EXPECT_THAT(values_of(w.gradient()), ElementsAreArray(scaled(c.dw, 2)));
  EXPECT_THAT(values_of(b.gradient()), ElementsAreArray(scaled(c.db, 2)));
  set.clear_gradients();
  backward(1);
  EXPECT_THAT(values_of(w.gradient()), ElementsAreArray(c.dw));
  EXPECT_THAT(values_of(b.gradient()), ElementsAreArray(c.db));
  set.clear_gradients();
  backward(0.5);
  backward(0.5);
  EXPECT_THAT(values_of(w.gradient()), ElementsAreArray(c.dw));
  EXPECT_THAT(values_of(b.gradient()), ElementsAreArray(c.db));
}

TEST_P(LinearTest, ReluAndItsGradientAtSignedZerosInfinitiesAndNan) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double tiny = GetParam().dtype == Dtype::f16 ? 0x1p-24 : 0x1p-133;  // subnormal in f16; in bf16 and f32
  const std::vector<double> z{0.0, -0.0, tiny, -tiny, inf, -inf, nan, 1, -1};
  Tape tape(context);
  const Var x = tape.variable(make({9}, z));
  const Var y = relu(x);
  const std::vector<double> a = values_of(y.value());
  EXPECT_THAT(std::vector(a.begin(), a.begin() + 6), ElementsAre(0, 0, tiny, 0, inf, 0));
  EXPECT_TRUE(std::isnan(a[6])) << "relu must not hide a NaN";
  EXPECT_THAT(std::vector(a.begin() + 7, a.end()), ElementsAre(1, 0));
  // An infinite or NaN gradient at a closed unit is dropped, not multiplied by zero.
  tape.backward(y, make({9}, {3, 3, 3, inf, 3, nan, 3, 3, nan}));
  const std::vector<double> dz = values_of(tape.gradient(x));
  EXPECT_THAT(std::vector(dz.begin(), dz.begin() + 6), ElementsAre(3, 3, 3, 0, 3, 0));
  EXPECT_THAT(std::vector(dz.begin() + 7, dz.end()), ElementsAre(3, 0));
}

TEST_P(LinearTest, NegativeZeroPreactivationIsOpen) {
  Tape tape(context);
  const Var x = tape.variable(make({1, 1}, {0.0}));
  const Var w = tape.variable(make({1, 1}, {-1}));
  const Var b = tape.variable(make({1}, {-0.0}));
  const Var a = linear(x, w, b, {.activation = Activation::relu});
  EXPECT_EQ(values_of(a.value())[0], 0);
  tape.backward(a, make({1, 1}, {5}));
  EXPECT_EQ(values_of(tape.gradient(w))[0], 0);
  EXPECT_EQ(values_of(tape.gradient(b))[0], 5);
  EXPECT_EQ(values_of(tape.gradient(x))[0], -5);
}

TEST_P(LinearTest, FanOutSumsBeforeTheMask) {
  // a = relu(x I + 0); two heads send back [1, 2, 4, 8] and [16, 32, -4, 64]. The third sum cancels at an open unit.
  Tape tape(context);
  const Var x = tape.variable(make({1, 4}, {-1, 0, 2, 3}));
  const Var w = tape.input(make({4, 4}, identity(4)));
  const Var b = tape.variable(make({4}, {0, 0, 0, 0}));
  const Var a = linear(x, w, b, {.activation = Activation::relu});
  const Var y1 = linear(a, tape.input(make({1, 4}, {1, 2, 4, 8})));
  const Var y2 = linear(a, tape.input(make({1, 4}, {16, 32, -4, 64})));
  tape.backward(add(y1, y2), make({1, 1}, {1}));
  EXPECT_THAT(values_of(tape.gradient(x)), ElementsAre(0, 34, 0, 72));
  EXPECT_THAT(values_of(tape.gradient(b)), ElementsAre(0, 34, 0, 72));
  EXPECT_EQ(context.counters().absorbed, fused ? 1 : 0) << "the last head absorbs, once";
  EXPECT_EQ(context.counters().absorbed_biases, absorbs_bias ? 1 : 0);
}

TEST_P(LinearTest, FanOutThroughTwoHeads) {
  Tape tape(context);
  const Var x = tape.variable(make({2, 2}, {1, -1, 2, 1}));
  const Var w1 = tape.variable(make({2, 2}, {1, 1, 1, -1}));
  const Var b1 = tape.variable(make({2}, {0, -0.5}));
  const Var w2 = tape.variable(make({1, 2}, {1, 2}));
  const Var w3 = tape.variable(make({1, 2}, {-1, 1}));
  const Var a = linear(x, w1, b1, {.activation = Activation::relu});
  EXPECT_THAT(values_of(a.value()), ElementsAre(0, 1.5, 3, 0.5));
  const Var loss = add(sum(linear(a, w2)), scale(sum(linear(a, w3)), 2));
  EXPECT_EQ(loss.item(), 5);
  tape.backward(loss);
  EXPECT_THAT(values_of(tape.gradient(w1)), ElementsAre(-3, 0, 12, 0));
  EXPECT_THAT(values_of(tape.gradient(b1)), ElementsAre(-2, 8));
  EXPECT_THAT(values_of(tape.gradient(x)), ElementsAre(3, -5, 3, -5));
  EXPECT_THAT(values_of(tape.gradient(w2)), ElementsAre(3, 2));
  EXPECT_THAT(values_of(tape.gradient(w3)), ElementsAre(6, 4));
}

TEST_P(LinearTest, ResidualJoinOfTheInput) {
  Tape tape(context);
  const Var x = tape.variable(make({2, 2}, {1, -2, 3, 1}));
  const Var w = tape.variable(make({2, 2}, {1, 1, -1, 2}));
  const Var b = tape.variable(make({2}, {1, -1}));
  const Var y = add(linear(x, w, b, {.activation = Activation::relu}), x);
  EXPECT_THAT(values_of(y.value()), ElementsAre(1, -2, 8, 1));
  tape.backward(y, make({2, 2}, {1, 2, 4, 8}));
  EXPECT_THAT(values_of(tape.gradient(w)), ElementsAre(13, 2, 0, 0));
  EXPECT_THAT(values_of(tape.gradient(b)), ElementsAre(5, 0));
  EXPECT_THAT(values_of(tape.gradient(x)), ElementsAre(2, 3, 8, 12));
}

TEST_P(LinearTest, ResidualJoinOfAHiddenValueIsAbsorbedByTheLastConsumer) {
  // h = relu(x w + b); y = h + relu-free block of h: the join contributes first, the block's product adds and masks.
  Tape tape(context);
  const Var x = tape.variable(make({1, 2}, {1, 2}));
  const Var b = tape.variable(make({2}, {0, -8}));
  const Var h = linear(x, tape.input(make({2, 2}, {1, 1, 1, 1})), b, {.activation = Activation::relu});
  const Var y = add(h, linear(h, tape.input(make({2, 2}, {2, 0, 0, 4}))));
  tape.backward(y, make({1, 2}, {1, 1}));
  EXPECT_THAT(values_of(tape.gradient(b)), ElementsAre(3, 0));
  EXPECT_THAT(values_of(tape.gradient(x)), ElementsAre(3, 3));
  EXPECT_EQ(context.counters().absorbed, fused ? 1 : 0);
}

TEST_P(LinearTest, EmptyBatchWritesZeroGradients) {
  const ZeroPreactivations c;
  ParameterSet set(context, GetParam().dtype);
  const Parameter w = set.add("w", {3, 3}, fill_with(c.w));
  const Parameter b = set.add("b", {3}, fill_with(c.b));
  poison_gradient(w);
  poison_gradient(b);
  Tape tape(context);
  const Var x = tape.variable(make({0, 3}, {}));
  const Var a = linear(x, tape.parameter(w), tape.parameter(b), {.activation = Activation::relu});
  EXPECT_EQ(a.shape(), Shape({0, 3}));
  tape.backward(a, make({0, 3}, {}));
  EXPECT_THAT(values_of(w.gradient()), testing::Each(0));
  EXPECT_THAT(values_of(b.gradient()), testing::Each(0));
  EXPECT_EQ(tape.gradient(x).shape(), Shape({0, 3}));
}

TEST_P(LinearTest, OneByOneByOne) {
  Tape tape(context);
  const Var x = tape.variable(make({1, 1}, {2}));
  const Var w = tape.variable(make({1, 1}, {-3}));
  const Var b = tape.variable(make({1}, {6.5}));
  const Var a = linear(x, w, b, {.activation = Activation::relu});
  EXPECT_EQ(values_of(a.value())[0], 0.5);
  tape.backward(a, make({1, 1}, {4}));
  EXPECT_EQ(values_of(tape.gradient(w))[0], 8);
  EXPECT_EQ(values_of(tape.gradient(b))[0], 4);
  EXPECT_EQ(values_of(tape.gradient(x))[0], -12);
}

TEST_P(LinearTest, NoInputFeaturesLeaveTheBias) {
  Tape tape(context);
  const Var x = tape.variable(make({2, 0}, {}));
  const Var w = tape.variable(make({3, 0}, {}));
  const Var b = tape.variable(make({3}, {1, -2, 3}));
  const Var a = linear(x, w, b, {.activation = Activation::relu});
  EXPECT_THAT(values_of(a.value()), ElementsAre(1, 0, 3, 1, 0, 3));
  tape.backward(a, make({2, 3}, {1, 1, 1, 2, 2, 2}));
  EXPECT_THAT(values_of(tape.gradient(b)), ElementsAre(3, 0, 3));
  EXPECT_EQ(tape.gradient(w).shape(), Shape({3, 0}));
  EXPECT_EQ(tape.gradient(x).shape(), Shape({2, 0}));
}

TEST_P(LinearTest, BiasIsAddedOnceAndPerFeature) {
  // Square on purpose: a bias along the wrong axis has the right shape here and the wrong values.
  Tape tape(context);
  const Var x = tape.variable(make({8, 8}, std::vector<double>(64, 0)));
  const Var w = tape.variable(make({8, 8}, std::vector<double>(64, 0)));
  const Var b = tape.variable(make({8}, {0, 1, 2, 3, 4, 5, 6, 7}));
  const std::vector<double> y = values_of(linear(x, w, b).value());
  for (int i = 0; i < 64; ++i) EXPECT_EQ(y[static_cast<std::size_t>(i)], i % 8) << i;
}

TEST_P(LinearTest, BiasGradientSumsTheBatch) {
  Tape tape(context);
  const Var x = tape.input(make({3, 1}, {1, 1, 1}));
  const Var b = tape.variable(make({2}, {0, 0}));
  const Var y = linear(x, tape.input(make({2, 1}, {0, 0})), b);
  tape.backward(y, make({3, 2}, {1, 2, 3, 4, 5, 6}));
  EXPECT_THAT(values_of(tape.gradient(b)), ElementsAre(9, 12));
  EXPECT_EQ(context.counters().column_sums, 1);
  EXPECT_EQ(context.counters().products, 1) << "constant x and w cost no product in backward";
}

TEST_P(LinearTest, BiasGradientOfManyEqualOnesIsExact) {
  // 1600 ones are 1600; a sum kept in bf16 stops at 256.
  ParameterSet set(context, GetParam().dtype);
  const Parameter w = set.add("w", {1, 1}, fill_with({1}));
  const Parameter b = set.add("b", {1}, fill_with({0}));
  Tape tape(context);
  const Var y = linear(tape.input(make({1600, 1}, std::vector<double>(1600, 1))), tape.parameter(w), tape.parameter(b));
  tape.backward(y, make({1600, 1}, std::vector<double>(1600, 1)));
  EXPECT_EQ(values_of(b.gradient())[0], 1600);
  EXPECT_EQ(values_of(w.gradient())[0], 1600);
}

TEST_P(LinearTest, EachSubsetOfFrozenInputsCostsOnlyItsProducts) {
  const ZeroPreactivations c;
  for (int subset = 0; subset < 8; ++subset) {
    SCOPED_TRACE(subset);
    const bool need_x = subset & 1;
    const bool need_w = subset & 2;
    const bool need_b = subset & 4;
    Tape tape(context);
    const auto leaf = [&](bool needed, const Tensor& t) { return needed ? tape.variable(t) : tape.input(t); };
    const Var x = leaf(need_x, make({2, 3}, c.x));
    const Var w = leaf(need_w, make({3, 3}, c.w));
    const Var b = leaf(need_b, make({3}, c.b));
    const Var a = linear(x, w, b, {.activation = Activation::relu});
    EXPECT_EQ(a.needs_gradient(), subset != 0);
    if (subset == 0) {
      EXPECT_EQ(tape.saved_bytes(), 0);
      EXPECT_THROW(tape.backward(a, make({2, 3}, c.da)), StateError);
      continue;
    }
    const std::int64_t before = context.counters().products;
    tape.backward(a, make({2, 3}, c.da));
    EXPECT_EQ(context.counters().products - before, need_x + need_w);
    if (need_x) {
      EXPECT_THAT(values_of(tape.gradient(x)), ElementsAreArray(c.dx));
    }
    if (need_w) {
      EXPECT_THAT(values_of(tape.gradient(w)), ElementsAreArray(c.dw));
    }
    if (need_b) {
      EXPECT_THAT(values_of(tape.gradient(b)), ElementsAreArray(c.db));
    }
  }
}

TEST_P(LinearTest, SharedLayerAddsItsGradients) {
  // y = w (w x + b) + b with scalars: dy/dw = 2 w x + b, dy/db = w + 1.
  Tape tape(context);
  const Var x = tape.input(make({1, 1}, {3}));
  const Var w = tape.variable(make({1, 1}, {2}));
  const Var b = tape.variable(make({1}, {5}));
  const LinearOptions relu{.activation = Activation::relu};
  const Var y = linear(linear(x, w, b, relu), w, b, relu);
  EXPECT_EQ(values_of(y.value())[0], 27);
  tape.backward(y, make({1, 1}, {1}));
  EXPECT_EQ(values_of(tape.gradient(w))[0], 17);
  EXPECT_EQ(values_of(tape.gradient(b))[0], 3);
}

TEST_P(LinearTest, DeadUnitsHaveZeroGradients) {
  Tape tape(context);
  const Var x = tape.variable(make({2, 2}, {1, 2, 3, 4}));
  const Var w = tape.variable(make({2, 2}, {-1, -1, -2, -2}));
  const Var b = tape.variable(make({2}, {-1, -1}));
  const Var a = linear(x, w, b, {.activation = Activation::relu});
  const Var y = linear(a, tape.input(make({1, 2}, {3, 5})));
  tape.backward(y, make({2, 1}, {1, 1}));
  EXPECT_THAT(values_of(tape.gradient(w)), testing::Each(0));
  EXPECT_THAT(values_of(tape.gradient(b)), testing::Each(0));
  EXPECT_THAT(values_of(tape.gradient(x)), testing::Each(0));
}

TEST_P(LinearTest, SeparateReluIsAbsorbedLikeTheFusedOne) {
  const ZeroPreactivations c;
  Tape tape(context);
  const Var x = tape.variable(make({2, 3}, c.x));
  const Var w = tape.variable(make({3, 3}, c.w));
  const Var b = tape.variable(make({3}, c.b));
  const Var a = relu(linear(x, w, b));
  const Var y = linear(a, tape.input(make({3, 3}, identity(3))));
  tape.backward(y, make({2, 3}, c.da));
  EXPECT_THAT(values_of(tape.gradient(w)), ElementsAreArray(c.dw));
  EXPECT_THAT(values_of(tape.gradient(b)), ElementsAreArray(c.db));
  EXPECT_THAT(values_of(tape.gradient(x)), ElementsAreArray(c.dx));
  EXPECT_EQ(context.counters().absorbed, fused ? 1 : 0);
  EXPECT_EQ(context.counters().activation_passes, GetParam().absorbs_in_product() ? 0 : 1);
}

TEST_P(LinearTest, InferenceSavesNothingAndAgrees) {
  const ZeroPreactivations c;
  Tape tape(context, Mode::inference);
  const Var a = linear(tape.variable(make({2, 3}, c.x)), tape.variable(make({3, 3}, c.w)),
                       tape.variable(make({3}, c.b)), {.activation = Activation::relu});
  EXPECT_THAT(values_of(a.value()), ElementsAre(0, 0, 0, 11, 10, 0));
  EXPECT_EQ(tape.size(), 0);
  EXPECT_EQ(tape.saved_bytes(), 0);
}

TEST_P(LinearTest, LeadingAxesAreTakenTogether) {
  const ZeroPreactivations c;
  Tape tape(context);
  const Var x = tape.variable(make({1, 2, 3}, c.x));
  const Var w = tape.variable(make({3, 3}, c.w));
  const Var b = tape.variable(make({3}, c.b));
  const Var a = linear(x, w, b, {.activation = Activation::relu});
  EXPECT_EQ(a.shape(), Shape({1, 2, 3}));
  tape.backward(a, make({1, 2, 3}, c.da));
  EXPECT_THAT(values_of(tape.gradient(x)), ElementsAreArray(c.dx));
  EXPECT_THAT(values_of(tape.gradient(w)), ElementsAreArray(c.dw));
}

TEST(LinearExplainTest, SpeaksOfABiasOnlyWhereThereIsOne) {
  for (const Fusion fusion : {Fusion::on, Fusion::off})
    for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_tanh})
      for (const bool with_bias : {false, true}) {
        SCOPED_TRACE(std::string(name_of(activation)) + (with_bias ? " with bias" : " without"));
        const Context context = Context::cpu({.threads = 1, .fusion = fusion});
        Tape tape(context);
        const auto ones = [&](const Shape& shape) {
          return tape.variable(Tensor::full(context, shape, Dtype::f32, 1));
        };
        const LinearOptions options{.activation = activation};
        const auto layer = [&](const Var& x) {
          return with_bias ? linear(x, ones({3, 3}), ones({3}), options) : linear(x, ones({3, 3}), options);
        };
        tape.backward(sum(layer(layer(ones({2, 3})))));
        const std::string text = tape.explain();
        EXPECT_EQ(text.find("bias") != std::string::npos, with_bias) << text;
        EXPECT_EQ(text.find("activation") != std::string::npos, activation != Activation::none) << text;
      }
}

TEST(LinearExplainTest, NamesTheLibraryOfEachProduct) {
  const auto explained = [](ProductLibrary library, Dtype dtype) {
    const Context context = Context::cpu({.threads = 1, .products = library});
    Tape tape(context);
    const auto ones = [&](const Shape& shape) { return tape.variable(Tensor::full(context, shape, dtype, 1)); };
    tape.backward(sum(linear(ones({64, 48}), ones({32, 48}))));
    return tape.explain();
  };
  for (const Dtype dtype : {Dtype::f32, Dtype::f64}) {
    const std::string text = explained(ProductLibrary::eigen, dtype);
    for (const char* note : {"y: Eigen", "dx: Eigen", "dw: Eigen"}) EXPECT_THAT(text, testing::HasSubstr(note));
  }
  if (!kWithOnednn) GTEST_SKIP() << "this fusegrad was built without oneDNN";
  const std::string text = explained(ProductLibrary::onednn, Dtype::f32);
  for (const char* note : {"dx: oneDNN", "dw: oneDNN"}) EXPECT_THAT(text, testing::HasSubstr(note));
  EXPECT_THAT(explained(ProductLibrary::onednn, Dtype::f64), testing::Not(testing::HasSubstr("oneDNN")));
}

TEST(LinearShapeTest, RowsWithoutFeaturesCostNothing) {
  // Rows that take a nanosecond each would take a quarter of an hour.
  const Context context = Context::cpu({.threads = 2});
  for (const Fusion fusion : {Fusion::on, Fusion::off})
    for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_erf}) {
      Tape tape(context, {.fusion = fusion});
      const auto empty = [&](const Shape& shape) { return tape.variable(Tensor::zeros(context, shape, Dtype::f32)); };
      const Var x = empty({std::int64_t{1} << 40, 0});
      const Var w = empty({0, 0});
      const Var b = empty({0});
      const Var h = linear(x, w, b, {.activation = activation});
      tape.backward(sum(linear(activate(h, activation), w, b)));
      EXPECT_EQ(tape.gradient(x).shape(), x.shape());
    }
}

TEST(LinearErrorTest, NamesWhatWasExpected) {
  const Context context = Context::cpu({.threads = 1});
  Tape tape(context);
  const auto zeros = [&](const Shape& shape, Dtype dtype = Dtype::f32) {
    return tape.variable(Tensor::zeros(context, shape, dtype));
  };
  const Var x = zeros({2, 784});
  const auto message = [](auto&& call) {
    try {
      call();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message([&] {
              linear(x, zeros({10, 512}));
            }),
            "linear: w must be [out, 784] (784 = last axis of x), got [10, 512]");
  EXPECT_EQ(message([&] {
              linear(x, zeros({10, 784}), zeros({11}));
            }),
            "linear: b must be [10] (10 = first axis of w), got [11]");
  EXPECT_EQ(message([&] { linear(zeros({784}), zeros({10, 784})); }), "linear: x must be [batch, in], got [784]");
  EXPECT_EQ(message([&] { linear(x, zeros({10, 784}, Dtype::f64)); }), "linear: w must be f32 as x is, got f64");
  EXPECT_EQ(message([&] {
              linear(x, zeros({10, 784}), zeros({10}, Dtype::bf16));
            }),
            "linear: b must be f32 as x is, got bf16");
  EXPECT_THROW(linear(x, Var()), StateError);
  Tape other(context);
  EXPECT_THROW(linear(x, other.input(Tensor::zeros(context, {10, 784}, Dtype::f32))), StateError);
}

}  // namespace
}  // namespace fusegrad
