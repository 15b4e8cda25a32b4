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

namespace fusegrad::test {
namespace {

class ReductionTest : public EachDevice {
 protected:
  Tensor integer_tensor(const Shape& shape, std::uint64_t seed) const {
    return tensor_of(context_, shape, dtype(), integers(1, shape.size(), seed, 4));
  }

  Context context_ = device_context({.threads = 2});
};
FUSEGRAD_EACH_DEVICE(ReductionTest);

TEST_P(ReductionTest, ReducesToAWideScalar) {
  Tape tape(context_);
  const Var x = tape.input(tensor_of(context_, {2, 3}, dtype(), Values(2, 3, {1, -2, 3, 0.5, 8, 1.5})));
  EXPECT_EQ(sum(x).shape(), Shape());
  EXPECT_EQ(sum(x).dtype(), wide());
  EXPECT_EQ(sum(x).item(), 12);
  EXPECT_EQ(mean(x).shape(), Shape());
  EXPECT_EQ(mean(x).dtype(), wide());
  EXPECT_EQ(mean(x).item(), 2);
}

TEST_P(ReductionTest, TheSumIsWiderThanTheElements) {
  // 4096 elements of 1 in bf16 arithmetic stop at 256, in f16 at 2048.
  Tape tape(context_);
  const Var x = tape.input(Tensor::full(context_, {4096}, dtype(), 1));
  EXPECT_EQ(sum(x).item(), 4096);
}

TEST_P(ReductionTest, TheMeanOfEqualValuesIsThatValue) {
  Tape tape(context_);
  for (std::int64_t n = 1; n <= 200; ++n) {
    ASSERT_EQ(mean(tape.input(Tensor::full(context_, {n}, dtype(), 1))).item(), 1) << n;
  }
}

TEST_P(ReductionTest, GradientIsSpreadEvenly) {
  Tape tape(context_);
  const Var x = tape.variable(integer_tensor({3, 5}, 1));
  const Var z = tape.variable(integer_tensor({2, 4}, 2));
  tape.backward(4 * sum(x) + 3 * mean(z));
  EXPECT_TRUE(equal(values_of(tape.gradient(x)), Values(3, 5).map([](double) { return 4.0; }), dtype()));
  EXPECT_TRUE(equal(values_of(tape.gradient(z)), Values(2, 4).map([](double) { return 0.375; }), dtype()));
  EXPECT_EQ(tape.gradient(x).dtype(), dtype());
}

TEST_P(ReductionTest, GradientIsAddedToWhatWasContributed) {
  Tape tape(context_);
  const Var x = tape.variable(tensor_of(context_, {3}, dtype(), Values(1, 3, {1, 2, 3})));
  const Var y = sum(mul(x, x)) + 2 * sum(x) - mean(scale(x, 3)) + sum(x);
  tape.backward(y);
  EXPECT_TRUE(equal(values_of(tape.gradient(x)), Values(1, 3, {4, 6, 8}), dtype()));
}

TEST_P(ReductionTest, AnEmptyTensorHasSumAndMeanZero) {
  for (const bool averaged : {false, true}) {
    Tape tape(context_);
    const Var x = tape.variable(Tensor::empty(context_, {0, 7}, dtype()));
    const Var y = averaged ? mean(x) : sum(x);
    EXPECT_EQ(y.item(), 0);
    tape.backward(y);
    EXPECT_EQ(tape.gradient(x).shape(), Shape({0, 7}));
  }
}

TEST_P(ReductionTest, AScalarIsItsOwnSum) {
  Tape tape(context_);
  const Var x = tape.variable(Tensor::full(context_, {}, dtype(), 3));
  const Var y = sum(x) + mean(x);
  tape.backward(y);
  EXPECT_EQ(y.item(), 6);
  EXPECT_EQ(tape.gradient(x).item(), 2);
}

TEST_P(ReductionTest, ParameterGradientsAreWide) {
  ParameterSet set(context_, dtype());
  const Parameter p = set.add("p", {3}, [](std::span<float> values) { std::ranges::fill(values, 1.0f); });
  Tape tape(context_);
  const Var w = tape.parameter(p);
  // A third has more bits than a 16-bit dtype: the gradient keeps those of fp32.
  tape.backward(mean(w));
  EXPECT_EQ(p.gradient().dtype(), wide());
  EXPECT_EQ(values_of(p.gradient()).at(0, 1), on_grid(1.0 / 3, wide()));
}

TEST_P(ReductionTest, SavesNothing) {
  Tape tape(context_);
  const Var x = tape.variable(integer_tensor({100}, 3));
  sum(x), mean(x);
  EXPECT_EQ(tape.saved_bytes(), 0);
}

TEST_P(ReductionTest, AnyNumberOfThreadsGivesTheSameBits) {
  const std::int64_t n = 200003;
  std::vector<double> sums;
  std::vector<std::vector<double>> gradients;
  for (const int threads : {1, 2, 3, 4, 8}) {
    const Context context = Context::cpu({.threads = threads});
    Tape tape(context);
    const Var x = tape.variable(tensor_of(context, {n}, dtype(), normal(1, n, 5, dtype())));
    const Var y = mean(mul(x, x));
    sums.push_back(y.item());
    tape.backward(y);
    gradients.push_back(values_of(tape.gradient(x)).elements);
  }
  for (std::size_t i = 1; i < sums.size(); ++i) {
    EXPECT_EQ(sums[i], sums[0]);
    EXPECT_EQ(gradients[i], gradients[0]);
  }
}

TEST(ReductionGradientTest, AgreesWithFiniteDifferences) {
  const Context context = Context::cpu({.threads = 1});
  const Tensor inputs[] = {tensor_of(context, Dtype::f64, normal(4, 3, 1, Dtype::f64))};
  const auto f = [](Tape&, std::span<const Var> x) { return mean(x[0] * x[0]) * sum(x[0]); };
  const GradientCheckReport report = gradient_check(f, inputs);
  EXPECT_TRUE(report.passed) << report.worst;
  EXPECT_EQ(report.smooth, 12);
}

TEST(ReductionErrorTest, RefusesAnEmptyVar) {
  EXPECT_THROW(sum(Var()), StateError);
  EXPECT_THROW(mean(Var()), StateError);
}

}  // namespace
}  // namespace fusegrad::test
