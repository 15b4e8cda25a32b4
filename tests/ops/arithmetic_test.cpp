#include <limits>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/dtypes.h"
#include "tests/support/fills.h"
#include "tests/support/matching.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/gradient_check.h>
#include <fusegrad/ops/arithmetic.h>
#include <fusegrad/ops/reduction.h>

namespace fusegrad::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class ArithmeticTest : public EachDevice {
 protected:
  Tensor row(std::initializer_list<double> values) const {
    const auto n = static_cast<std::int64_t>(values.size());
    return tensor_of(context_, {n}, dtype(), Values(1, n, values));
  }
  Tensor normal_tensor(std::int64_t n, std::uint64_t seed) const {
    return tensor_of(context_, {n}, dtype(), normal(1, n, seed, dtype()));
  }
  std::int64_t aliases() const { return context_.counters().aliases; }

  Context context_ = device_context({.threads = 2});
};
FUSEGRAD_EACH_DEVICE(ArithmeticTest);

std::vector<double> elements(const Tensor& tensor) { return values_of(tensor).elements; }

TEST_P(ArithmeticTest, ComputesElementByElement) {
  Tape tape(context_);
  const Var a = tape.input(row({1, -2, 0.5, 4}));
  const Var b = tape.input(row({3, 0.25, -8, 4}));
  EXPECT_THAT(elements(add(a, b).value()), ElementsAre(4, -1.75, -7.5, 8));
  EXPECT_THAT(elements(sub(a, b).value()), ElementsAre(-2, -2.25, 8.5, 0));
  EXPECT_THAT(elements(mul(a, b).value()), ElementsAre(3, -0.5, -4, 16));
  EXPECT_THAT(elements(scale(a, -1.5).value()), ElementsAre(-1.5, 3, -0.75, -6));
  EXPECT_EQ(add(a, b).dtype(), dtype());
}

TEST_P(ArithmeticTest, OperatorsAreTheNamedOps) {
  Tape tape(context_);
  const Var a = tape.input(row({1, -2}));
  const Var b = tape.input(row({3, 0.25}));
  EXPECT_THAT(elements((a + b).value()), ElementsAre(4, -1.75));
  EXPECT_THAT(elements((a - b).value()), ElementsAre(-2, -2.25));
  EXPECT_THAT(elements((a * b).value()), ElementsAre(3, -0.5));
  EXPECT_THAT(elements((2 * a).value()), ElementsAre(2, -4));
  EXPECT_THAT(elements((a * 0.5).value()), ElementsAre(0.5, -1));
  EXPECT_THAT(elements((-a).value()), ElementsAre(-1, 2));
}

TEST_P(ArithmeticTest, RoundsOnce) {
  const std::int64_t n = 1000;
  const Values a = normal(1, n, 1, dtype());
  const Values b = normal(1, n, 2, dtype());
  Tape tape(context_);
  const Var x = tape.input(tensor_of(context_, {n}, dtype(), a));
  const Var y = tape.input(tensor_of(context_, {n}, dtype(), b));
  const double u = accumulation_roundoff(dtype());
  // In a 16-bit dtype the fp32 result may be a rounding of its own off; in f64 and f32 it is the rounded truth.
  const auto bound = [&](const Values& truth) {
    return truth.map([&](double t) { return dtype() == wide() ? 0 : u * std::fabs(t); });
  };
  const Values added = sum(a, b);
  const Values multiplied = a.zip(b, [](double p, double q) { return p * q; });
  EXPECT_TRUE(near(values_of(add(x, y).value()), added, bound(added), dtype()));
  EXPECT_TRUE(near(values_of(mul(x, y).value()), multiplied, bound(multiplied), dtype()));
  const double factor = dtype() == Dtype::f64 ? 0.1 : static_cast<double>(0.1f);
  const Values scaled = a.map([&](double p) { return factor * p; });
  EXPECT_TRUE(near(values_of(scale(x, 0.1).value()), scaled, bound(scaled), dtype()));
}

TEST_P(ArithmeticTest, GradientsFollowTheRules) {
  Tape tape(context_);
  const Var a = tape.variable(row({1, -2, 0.5}));
  const Var b = tape.variable(row({3, 0.25, -8}));
  const Var c = tape.variable(row({-1, 2, 4}));
  // y = 2 a b - c + b
  const Var y = 2 * (a * b) - c + b;
  const Tensor seed = row({1, 2, -4});
  tape.backward(y, seed);
  EXPECT_THAT(elements(tape.gradient(a)), ElementsAre(6, 1, 64));
  EXPECT_THAT(elements(tape.gradient(b)), ElementsAre(2 + 1, -8 + 2, -4 - 4));
  EXPECT_THAT(elements(tape.gradient(c)), ElementsAre(-1, -2, 4));
  EXPECT_THAT(elements(seed), ElementsAre(1, 2, -4));
  EXPECT_EQ(tape.gradient(a).dtype(), dtype());
}

TEST_P(ArithmeticTest, AValueUsedTwiceGetsBothContributions) {
  // x = 1.5, h = 2 x, y = h h + h: dy/dx = 2 (2 h + 1) = 14.
  Tape tape(context_);
  const Var x = tape.variable(row({1.5}));
  const Var h = 2 * x;
  const Var y = h * h + h;
  tape.backward(y);
  EXPECT_EQ(y.item(), 12);
  EXPECT_EQ(tape.gradient(x).item(), 14);
}

TEST_P(ArithmeticTest, PathsOfUnequalLengthJoin) {
  // y = x * (4 x - x x) + x: dy/dx = 8 x - 3 x^2 + 1 = 6 at 1; 7 would be a reused node's gradient counted twice.
  Tape tape(context_);
  const Var x = tape.variable(row({1}));
  const Var y = x * (4 * x - x * x) + x;
  tape.backward(y);
  EXPECT_EQ(tape.gradient(x).item(), 6);
}

TEST_P(ArithmeticTest, ContributionsThatCancelGiveExactlyZero) {
  Tape tape(context_);
  const Var a = tape.variable(row({-1, 0, 2, 3}));
  const Var first = mul(a, tape.input(row({1, 2, 4, 8})));
  const Var second = mul(a, tape.input(row({16, 32, -4, 64})));
  tape.backward(sum(first) + sum(second));
  EXPECT_THAT(elements(tape.gradient(a)), ElementsAre(17, 34, 0, 72));
}

TEST_P(ArithmeticTest, TheSameInputTwiceCountsTwice) {
  for (const bool first : {true, false}) {
    Tape tape(context_);
    const Var x = tape.variable(row({3, -2}));
    const Var y = first ? add(x, x) : sub(x, x);
    tape.backward(y, row({1, 5}));
    EXPECT_THAT(elements(tape.gradient(x)), first ? ElementsAre(2, 10) : ElementsAre(0, 0));
  }
  Tape tape(context_);
  const Var x = tape.variable(row({3, -2}));
  tape.backward(mul(x, x), row({1, 5}));
  EXPECT_THAT(elements(tape.gradient(x)), ElementsAre(6, -20));
}

TEST_P(ArithmeticTest, AnAliasedGradientIsNeverWritten) {
  // y = x + x2 hands one buffer to both; a second consumer of x, recorded before or after, must not reach x2 by it.
  for (const bool extra_first : {true, false}) {
    Tape tape(context_);
    const Var x = tape.variable(row({1, 2}));
    const Var x2 = tape.variable(row({3, 4}));
    Var extra;
    if (extra_first) extra = scale(x, 3);
    const Var y = x + x2;
    if (!extra_first) extra = scale(x, 3);
    const Tensor seed = row({1, 1});
    tape.backward(y + extra, seed);
    EXPECT_THAT(elements(tape.gradient(x)), ElementsAre(4, 4)) << extra_first;
    EXPECT_THAT(elements(tape.gradient(x2)), ElementsAre(1, 1)) << extra_first;
    EXPECT_THAT(elements(seed), ElementsAre(1, 1)) << extra_first;
  }
}

TEST_P(ArithmeticTest, HandsGradientsOnWithoutACopy) {
  const auto count = [&](auto&& record) {
    Tape tape(context_);
    const Var a = tape.variable(row({1, 2}));
    const Var b = tape.variable(row({3, 4}));
    const Var y = record(a, b);
    const std::int64_t before = aliases();
    tape.backward(y, row({1, 2}));
    return aliases() - before;
  };
  EXPECT_EQ(count([](const Var& a, const Var& b) { return add(a, b); }), 2);
  EXPECT_EQ(count([](const Var& a, const Var& b) { return sub(a, b); }), 1);
  EXPECT_EQ(count([](const Var& a, const Var&) { return add(a, a); }), 1);
  EXPECT_EQ(count([](const Var& a, const Var& b) { return mul(a, b); }), 0);
  EXPECT_EQ(count([](const Var& a, const Var&) { return scale(a, 1); }), 1);
  EXPECT_EQ(count([](const Var& a, const Var&) { return scale(a, 2); }), 0);
}

TEST_P(ArithmeticTest, SavesOnlyWhatBackwardReads) {
  const auto bytes = static_cast<std::int64_t>(4 * size_of(dtype()));
  Tape tape(context_);
  const Var v = tape.variable(row({1, 2, 3, 4}));
  const Var w = tape.variable(row({1, 2, 3, 4}));
  const Var c = tape.input(row({1, 2, 3, 4}));
  const auto saved_by = [&](auto&& record) {
    const std::int64_t before = tape.saved_bytes();
    record();
    return tape.saved_bytes() - before;
  };
  EXPECT_EQ(saved_by([&] { add(v, w), sub(v, c), scale(v, 3), add(c, c); }), 0);
  EXPECT_EQ(saved_by([&] { mul(v, c); }), bytes);
  EXPECT_EQ(saved_by([&] { mul(c, v); }), bytes);
  EXPECT_EQ(saved_by([&] { mul(v, w); }), 2 * bytes);
  EXPECT_EQ(saved_by([&] { mul(c, c); }), 0);
}

TEST_P(ArithmeticTest, AConstantOperandGetsNoGradient) {
  Tape tape(context_);
  const Var x = tape.variable(row({1, 2}));
  const Var c = tape.input(row({3, 4}));
  tape.backward(mul(c, x) + sub(c, x), row({1, 1}));
  EXPECT_THAT(elements(tape.gradient(x)), ElementsAre(2, 3));
  EXPECT_THROW(tape.gradient(c), StateError);
}

TEST_P(ArithmeticTest, ParameterGradientsAreWideAndNotAliased) {
  ParameterSet set(context_, dtype());
  const Parameter p = set.add("p", {2}, [](std::span<float> values) { values[0] = 1, values[1] = -2; });
  Tape tape(context_);
  const Var w = tape.parameter(p);
  // 256 + 1 is no bf16 and 2048 + 1 no f16: a narrow gradient would lose the second contribution.
  const Tensor big = row({256, 2048});
  const Var y = add(w, w) + mul(w, tape.input(big));
  tape.backward(y, row({1, 1}));
  EXPECT_EQ(p.gradient().dtype(), wide());
  EXPECT_THAT(elements(p.gradient()), ElementsAre(258, 2050));
  EXPECT_THAT(elements(p.value()), ElementsAre(1, -2));
}

TEST_P(ArithmeticTest, AnySizeWorks) {
  for (const std::int64_t n : {0, 1, 513, 33000}) {
    const Values a = integers(1, n, 1, 4);
    const Values b = integers(1, n, 2, 4);
    const Values dy = integers(1, n, 3, 4);
    Tape tape(context_);
    const Var x = tape.variable(tensor_of(context_, {n}, dtype(), a));
    const Var y = tape.variable(tensor_of(context_, {n}, dtype(), b));
    const Var z = mul(x, y) - scale(y, 2) + x;
    tape.backward(z, tensor_of(context_, {n}, dtype(), dy));
    EXPECT_EQ(elements(tape.gradient(x)), b.zip(dy, [](double q, double g) { return q * g + g; }).elements) << n;
    EXPECT_EQ(elements(tape.gradient(y)), a.zip(dy, [](double p, double g) { return p * g - 2 * g; }).elements) << n;
  }
}

TEST_P(ArithmeticTest, NanAndInfinityStayInTheirElement) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Tape tape(context_);
  const Var x = tape.variable(row({nan, inf, 0, 2}));
  const Var y = tape.variable(row({1, 1, inf, 3}));
  tape.backward(mul(x, y), row({1, 1, 0, 1}));
  EXPECT_TRUE(
      equal(values_of(tape.gradient(x)).map([](double v) { return v; }), Values(1, 4, {1, 1, nan, 3}), dtype()));
  EXPECT_TRUE(equal(values_of(tape.gradient(y)), Values(1, 4, {nan, inf, 0, 2}), dtype()));
}

TEST_P(ArithmeticTest, RefusesOperandsThatDoNotMatchAndRecordsNothing) {
  Tape tape(context_);
  Tape other(context_);
  const Var a = tape.variable(tensor_of(context_, {2, 3}, dtype(), Values(2, 3)));
  const Var b = tape.variable(tensor_of(context_, {3, 2}, dtype(), Values(3, 2)));
  const Var one = tape.variable(tensor_of(context_, {1}, dtype(), Values(1, 1)));
  const Var narrow = tape.variable(Tensor::zeros(context_, {2, 3}, dtype() == Dtype::f32 ? Dtype::f16 : Dtype::f32));
  const Var foreign = other.variable(tensor_of(context_, {2, 3}, dtype(), Values(2, 3)));
  const std::int64_t size = tape.size();
  EXPECT_THAT([&] { add(a, b); }, ThrowsMessage<ShapeError>("add: b must be [2, 3] as a is, got [3, 2]"));
  EXPECT_THROW(sub(a, one), ShapeError) << "nothing broadcasts";
  EXPECT_THAT([&] { mul(a, narrow); }, ThrowsMessage<DtypeError>(HasSubstr("mul: b must be ")));
  EXPECT_THROW(add(a, foreign), StateError);
  EXPECT_THROW(mul(foreign, a), StateError);
  EXPECT_THROW(add(a, Var()), StateError);
  EXPECT_THROW(add(Var(), a), StateError);
  EXPECT_THROW(scale(Var(), 2), StateError);
  EXPECT_EQ(tape.size(), size);
  EXPECT_EQ(other.size(), 1);
  tape.backward(a + a, tensor_of(context_, {2, 3}, dtype(), Values(2, 3)));  // the tape still works
}

TEST(ArithmeticGradientTest, AgreesWithFiniteDifferences) {
  const Context context = Context::cpu({.threads = 1});
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const Tensor a = tensor_of(context, Dtype::f64, normal(3, 5, seed, Dtype::f64));
    const Tensor b = tensor_of(context, Dtype::f64, normal(3, 5, seed + 100, Dtype::f64));
    const Tensor inputs[] = {a, b};
    const auto f = [](Tape&, std::span<const Var> x) { return x[0] * x[1] - 0.3 * x[0] + (x[1] - x[0]) * x[1]; };
    const GradientCheckReport report = gradient_check(f, inputs);
    EXPECT_TRUE(report.passed) << report.worst;
    EXPECT_EQ(report.smooth, 30);
  }
}

}  // namespace
}  // namespace fusegrad::test
