#include <cmath>
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
#include <fusegrad/ops/mse_loss.h>
#include <fusegrad/ops/reduction.h>

namespace fusegrad::test {
namespace {

using testing::ElementsAre;
using testing::ThrowsMessage;

constexpr Reduction kReductions[] = {Reduction::mean, Reduction::sum, Reduction::none};

std::vector<double> elements(const Tensor& tensor) { return values_of(tensor).elements; }

class MseLossTest : public EachDevice {
 protected:
  Tensor row(std::initializer_list<double> values) const {
    const auto n = static_cast<std::int64_t>(values.size());
    return tensor_of(context_, {n}, dtype(), Values(1, n, values));
  }

  Context context_ = device_context({.threads = 2});
};
FUSEGRAD_EACH_DEVICE(MseLossTest);

TEST_P(MseLossTest, FollowsTheClosedForm) {
  struct Case {
    Reduction reduction;
    std::vector<double> loss, gradient;
  };
  const Case cases[] = {{Reduction::mean, {5.0625}, {0, 1, -0.25, -2}},
                        {Reduction::sum, {20.25}, {0, 4, -1, -8}},
                        {Reduction::none, {0, 4, 0.25, 16}, {0, 4, -1, -8}}};
  for (const Case& each : cases) {
    Tape tape(context_);
    const Var p = tape.variable(row({1, 2, 3, 4}));
    const Var loss = mse_loss(p, row({1, 0, 3.5, 8}), {.reduction = each.reduction});
    EXPECT_EQ(elements(loss.value()), each.loss);
    EXPECT_EQ(loss.dtype(), wide());
    tape.backward(sum(loss));
    EXPECT_EQ(elements(tape.gradient(p)), each.gradient);
    EXPECT_EQ(tape.gradient(p).dtype(), dtype());
  }
}

TEST_P(MseLossTest, HasNoFactorOneHalf) {
  // Prediction [1, 3], target [0, 0]: sum 10 with gradient [2, 6], mean 5 with gradient [1, 3].
  for (const bool averaged : {false, true}) {
    Tape tape(context_);
    const Var p = tape.variable(row({1, 3}));
    const Var loss = mse_loss(p, row({0, 0}), {.reduction = averaged ? Reduction::mean : Reduction::sum});
    EXPECT_EQ(loss.item(), averaged ? 5 : 10);
    tape.backward(loss);
    EXPECT_THAT(elements(tape.gradient(p)), averaged ? ElementsAre(1, 3) : ElementsAre(2, 6));
  }
}

TEST_P(MseLossTest, TheMeanIsOverBatchAndFeatures) {
  Tape tape(context_);
  const Var p = tape.variable(Tensor::full(context_, {4, 8}, dtype(), 3));
  const Var loss = mse_loss(p, Tensor::full(context_, {4, 8}, dtype(), 1));
  EXPECT_EQ(loss.item(), 4);
  tape.backward(loss);
  EXPECT_TRUE(equal(values_of(tape.gradient(p)), Values(4, 8).map([](double) { return 0.125; }), dtype()));
}

TEST_P(MseLossTest, TargetsMayBeF32) {
  if (dtype() == Dtype::f64) {
    Tape tape(context_);
    const Var p = tape.input(row({1}));
    EXPECT_THAT([&] { mse_loss(p, Tensor::zeros(context_, {1}, Dtype::f32)); },
                ThrowsMessage<DtypeError>("mse_loss: target must be f64, got f32"));
    return;
  }
  // 1/1024 more than 1 is no bf16, and 1/4096 no f16: rounding the target would lose it.
  Tape tape(context_);
  const Var p = tape.variable(row({1, 1}));
  const Tensor target = tensor_of(context_, {2}, Dtype::f32, Values(1, 2, {1 + 0x1p-12, 1 - 0x1p-12}));
  const Var loss = mse_loss(p, target, {.reduction = Reduction::none});
  EXPECT_THAT(elements(loss.value()), ElementsAre(0x1p-24, 0x1p-24));
  tape.backward(loss, tensor_of(context_, {2}, Dtype::f32, Values(1, 2, {1, 1})));
  EXPECT_THAT(elements(tape.gradient(p)), ElementsAre(-0x1p-11, 0x1p-11));
}

TEST_P(MseLossTest, StaysWithinItsBounds) {
  for (const std::int64_t n : {1, 7, 513, 40000}) {
    const Values p = normal(1, n, 1, dtype());
    const Values t = normal(1, n, 2, dtype());
    long double truth = 0;
    for (std::size_t i = 0; i < p.elements.size(); ++i) {
      const long double r = static_cast<long double>(p.elements[i]) - t.elements[i];
      truth += r * r;
    }
    truth /= n;
    Tape tape(context_);
    const Var x = tape.variable(tensor_of(context_, {n}, dtype(), p));
    const Var loss = mse_loss(x, tensor_of(context_, {n}, dtype(), t));
    EXPECT_TRUE(within(loss.item(), static_cast<double>(truth), 50 * 0x1p-53 * static_cast<double>(truth), wide()));
    tape.backward(loss);
    const Values gradient = p.zip(t, [&](double a, double b) { return 2 * (a - b) / static_cast<double>(n); });
    const double u = accumulation_roundoff(dtype());
    EXPECT_TRUE(near(values_of(tape.gradient(x)), gradient,
                     gradient.map([&](double g) { return 4 * u * std::fabs(g); }), dtype()))
        << n;
  }
}

TEST_P(MseLossTest, GradientIsAddedToWhatWasContributed) {
  for (const Reduction reduction : kReductions) {
    Tape tape(context_);
    const Var p = tape.variable(row({1, 2, 3, 4}));
    const Var loss = mse_loss(p, row({1, 0, 3.5, 8}), {.reduction = reduction});
    tape.backward(sum(loss) + sum(p));
    const double divisor = reduction == Reduction::mean ? 4 : 1;
    EXPECT_THAT(elements(tape.gradient(p)), ElementsAre(1, 1 + 4 / divisor, 1 - 1 / divisor, 1 - 8 / divisor));
  }
}

TEST_P(MseLossTest, EachRowTakesItsOwnUpstreamGradient) {
  Tape tape(context_);
  const Var p = tape.variable(row({1, 2, 3, 4}));
  const Var loss = mse_loss(p, row({1, 0, 3.5, 8}), {.reduction = Reduction::none});
  tape.backward(loss, tensor_of(context_, {4}, wide(), Values(1, 4, {5, 1, -2, 0.5})));
  EXPECT_THAT(elements(tape.gradient(p)), ElementsAre(0, 4, 2, -4));
}

TEST_P(MseLossTest, NothingToAverageIsZero) {
  for (const Reduction reduction : kReductions) {
    Tape tape(context_);
    const Var p = tape.variable(Tensor::empty(context_, {0, 3}, dtype()));
    const Var loss = mse_loss(p, Tensor::empty(context_, {0, 3}, dtype()), {.reduction = reduction});
    if (reduction != Reduction::none) {
      EXPECT_EQ(loss.item(), 0);
    }
    tape.backward(sum(loss));
    EXPECT_EQ(tape.gradient(p).shape(), Shape({0, 3}));
  }
}

TEST_P(MseLossTest, ExtremesNeverTurnIntoSomethingElse) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double large = dtype() == Dtype::f64 ? 1e150 : dtype() == Dtype::f16 ? 65504 : on_grid(1e18, dtype());
  Tape tape(context_);
  const Var p = tape.variable(row({large, inf, nan, 0, -large}));
  const Var loss = mse_loss(p, row({0, 0, 0, inf, -large}), {.reduction = Reduction::none});
  EXPECT_TRUE(equal(values_of(loss.value()), Values(1, 5, {large * large, inf, nan, inf, 0}), wide()));
  tape.backward(loss, tensor_of(context_, {5}, wide(), Values(1, 5, {0.25, 1, 1, 1, 1})));
  EXPECT_TRUE(equal(values_of(tape.gradient(p)), Values(1, 5, {large / 2, inf, nan, -inf, 0}), dtype()));
}

TEST_P(MseLossTest, AnyNumberOfThreadsGivesTheSameBits) {
  const std::int64_t n = 100003;
  std::vector<double> losses;
  for (const int threads : {1, 2, 3, 4, 8}) {
    const Context context = Context::cpu({.threads = threads});
    Tape tape(context);
    const Var p = tape.input(tensor_of(context, {n}, dtype(), normal(1, n, 1, dtype())));
    losses.push_back(mse_loss(p, tensor_of(context, {n}, dtype(), normal(1, n, 2, dtype()))).item());
  }
  for (const double loss : losses) EXPECT_EQ(loss, losses[0]);
}

TEST_P(MseLossTest, SavesPredictionAndTarget) {
  const auto bytes = static_cast<std::int64_t>(3 * size_of(dtype()));
  Tape tape(context_);
  mse_loss(tape.variable(row({1, 2, 3})), row({0, 0, 0}));
  EXPECT_EQ(tape.saved_bytes(), 2 * bytes);
  mse_loss(tape.input(row({1, 2, 3})), row({0, 0, 0}));
  EXPECT_EQ(tape.saved_bytes(), 2 * bytes) << "a constant prediction needs nothing saved";
}

TEST_P(MseLossTest, NothingBroadcasts) {
  Tape tape(context_);
  const Var p = tape.variable(tensor_of(context_, {2, 1}, dtype(), Values(2, 1, {1, 2})));
  EXPECT_THAT(
      [&] {
        mse_loss(p, row({1, 2}));
      },
      ThrowsMessage<ShapeError>("mse_loss: target must be [2, 1] as prediction is, got [2]"));
  EXPECT_EQ(tape.size(), 1);
}

TEST(MseLossErrorTest, RefusesWrongTargets) {
  const Context context = Context::cpu({.threads = 1});
  const Context other = Context::cpu({.threads = 1});
  Tape tape(context);
  const Var p = tape.variable(Tensor::zeros(context, {2}, Dtype::f32));
  EXPECT_THROW(mse_loss(p, Tensor::zeros(context, {2}, Dtype::f16)), DtypeError);
  EXPECT_THROW(mse_loss(p, Tensor::zeros(context, {2}, Dtype::i32)), DtypeError);
  EXPECT_THROW(mse_loss(p, Tensor::zeros(other, {2}, Dtype::f32)), DeviceError);
  EXPECT_THROW(mse_loss(p, Tensor()), StateError);
  EXPECT_THROW(mse_loss(Var(), Tensor::zeros(context, {2}, Dtype::f32)), StateError);
  EXPECT_EQ(tape.size(), 1);
}

TEST(MseLossGradientTest, AgreesWithFiniteDifferencesAtAnyWidth) {
  const Context context = Context::cpu({.threads = 1});
  for (const Reduction reduction : kReductions)
    for (const std::int64_t width : {1, 2, 7}) {
      const Tensor target = tensor_of(context, Dtype::f64, normal(3, width, 2, Dtype::f64));
      const Tensor inputs[] = {tensor_of(context, Dtype::f64, normal(3, width, 1, Dtype::f64))};
      const auto f = [&](Tape&, std::span<const Var> x) { return mse_loss(x[0], target, {.reduction = reduction}); };
      const GradientCheckReport report = gradient_check(f, inputs);
      EXPECT_TRUE(report.passed) << report.worst;
      EXPECT_EQ(report.smooth, 3 * width);
    }
}

}  // namespace
}  // namespace fusegrad::test
