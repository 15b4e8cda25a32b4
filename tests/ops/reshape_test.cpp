#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/dtypes.h"
#include "tests/support/fills.h"
#include "tests/support/matching.h"
#include "tests/support/values.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/gradient_check.h>
#include <fusegrad/ops/arithmetic.h>
#include <fusegrad/ops/reduction.h>
#include <fusegrad/ops/reshape.h>

namespace fusegrad::test {
namespace {

class ReshapeTest : public EachDevice {
 protected:
  Tensor integer_tensor(const Shape& shape, std::uint64_t seed) const {
    return tensor_of(context_, shape, dtype(), integers(1, shape.size(), seed, 4));
  }

  Context context_ = device_context({.threads = 1});
};
FUSEGRAD_EACH_DEVICE(ReshapeTest);

TEST_P(ReshapeTest, SharesMemory) {
  Tape tape(context_);
  const Tensor t = integer_tensor({2, 6}, 1);
  const Var x = tape.variable(t);
  const Var y = reshape(x, {3, 2, 2});
  EXPECT_EQ(y.shape(), Shape({3, 2, 2}));
  EXPECT_EQ(y.dtype(), dtype());
  EXPECT_EQ(y.value().raw(), t.raw());
  EXPECT_EQ(tape.saved_bytes(), 0);
}

TEST_P(ReshapeTest, HandsTheGradientOnUnderItsOldShape) {
  Tape tape(context_);
  const Var x = tape.variable(integer_tensor({2, 6}, 1));
  const Var y = reshape(x, {3, 4});
  const Tensor seed = integer_tensor({3, 4}, 2);
  const std::int64_t before = context_.counters().aliases;
  tape.backward(y, seed);
  EXPECT_EQ(context_.counters().aliases - before, 1);
  EXPECT_EQ(tape.gradient(x).shape(), Shape({2, 6}));
  EXPECT_EQ(values_of(tape.gradient(x)).elements, values_of(seed).elements);
}

TEST_P(ReshapeTest, AddsToWhatWasContributed) {
  Tape tape(context_);
  const Values dy = integers(1, 12, 2, 4);
  const Var x = tape.variable(integer_tensor({2, 6}, 1));
  const Var flat = reshape(x, {12});
  const Var y = reshape(scale(x, 3), {12}) + flat + flat;
  tape.backward(y, tensor_of(context_, {12}, dtype(), dy));
  EXPECT_EQ(values_of(tape.gradient(x)).elements, dy.map([](double g) { return 5 * g; }).elements);
}

TEST_P(ReshapeTest, GradientOfAParameterIsAddedInItsOwnBuffer) {
  ParameterSet set(context_, dtype());
  const Parameter p = set.add("p", {2, 2}, [](std::span<float> values) { std::ranges::fill(values, 2.0f); });
  Tape tape(context_);
  const Var w = tape.parameter(p);
  const Var y = reshape(w, {4});
  const std::int64_t before = context_.counters().aliases;
  tape.backward(y, tensor_of(context_, {4}, dtype(), Values(1, 4, {1, 2, 3, 4})), {.keep = true});
  tape.backward(y, tensor_of(context_, {4}, dtype(), Values(1, 4, {1, 2, 3, 4})));
  EXPECT_EQ(context_.counters().aliases, before);
  EXPECT_EQ(p.gradient().dtype(), wide());
  EXPECT_EQ(values_of(p.gradient()).elements, (std::vector<double>{2, 4, 6, 8}));
}

TEST_P(ReshapeTest, EmptyTensorsAndScalars) {
  Tape tape(context_);
  const Var x = tape.variable(Tensor::empty(context_, {0, 3}, dtype()));
  EXPECT_EQ(reshape(x, {7, 0, 2}).shape(), Shape({7, 0, 2}));
  const Var s = tape.variable(Tensor::full(context_, {1, 1}, dtype(), 5));
  const Var y = reshape(s, {});
  EXPECT_EQ(y.item(), 5);
  tape.backward(y);
  EXPECT_EQ(tape.gradient(s).shape(), Shape({1, 1}));
  EXPECT_EQ(tape.gradient(s).item(), 1);
}

TEST_P(ReshapeTest, RefusesAnotherNumberOfElements) {
  Tape tape(context_);
  const Var x = tape.variable(integer_tensor({2, 6}, 1));
  EXPECT_THAT(
      [&] {
        reshape(x, {5, 2});
      },
      testing::ThrowsMessage<ShapeError>("reshape: [2, 6] has 12 elements, [5, 2] has 10"));
  EXPECT_THROW(reshape(Var(), {1}), StateError);
  EXPECT_EQ(tape.size(), 1);
}

TEST(ReshapeGradientTest, AgreesWithFiniteDifferences) {
  const Context context = Context::cpu({.threads = 1});
  const Tensor inputs[] = {tensor_of(context, Dtype::f64, normal(2, 6, 1, Dtype::f64))};
  const auto f = [](Tape&, std::span<const Var> x) {
    const Var y = reshape(x[0], {4, 3});
    return y * y + reshape(x[0], {4, 3});
  };
  const GradientCheckReport report = gradient_check(f, inputs);
  EXPECT_TRUE(report.passed) << report.worst;
  EXPECT_EQ(report.smooth, 12);
}

}  // namespace
}  // namespace fusegrad::test
