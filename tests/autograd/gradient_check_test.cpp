// The checker itself: it passes right gradients, kinks included, and rejects every planted wrong one.
#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/device.h"
#include "tests/support/tensors.h"

#include <fusegrad/autograd/op.h>
#include <fusegrad/fusegrad.h>

namespace fusegrad {
namespace {

using testing::HasSubstr;

Tensor f64(const Context& context, const Shape& shape, const std::vector<double>& values) {
  return Tensor::from(context, shape, values);
}

/// Deterministic values in [-1, 1) that avoid special points.
std::vector<double> draw(std::uint64_t seed, std::int64_t count) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(2.0 * static_cast<double>(Random(seed, 7).uniform(static_cast<std::uint64_t>(i))) - 1.0 + 0x1p-30);
  }
  return values;
}

GradientCheckReport check(const CheckedFunction& f, const std::vector<Tensor>& inputs,
                          const GradientCheckOptions& options = {}) {
  return gradient_check(f, inputs, options);
}

class GradientCheckTest : public testing::Test {
 protected:
  Context context = Context::cpu({.threads = 1});
};

TEST_F(GradientCheckTest, PassesASmoothFunctionByTheFivePointRule) {
  const auto report =
      check([](Tape&, std::span<const Var> in) { return mul(in[0], in[0]); }, {f64(context, {3}, {0.5, -2, 3})});
  EXPECT_TRUE(report.passed) << report.worst;
  EXPECT_EQ(report.smooth, 3);
  EXPECT_EQ(report.frozen, 0);
  EXPECT_LT(report.largest_error, 1e-12);
}

TEST_F(GradientCheckTest, TakesTheRouteThatTheKinkAsksFor) {
  const auto route = [&](double x) {
    const auto report = check([](Tape&, std::span<const Var> in) { return relu(in[0]); }, {f64(context, {1}, {x})});
    EXPECT_TRUE(report.passed) << x << ": " << report.worst;
    EXPECT_EQ(report.largest_error, 0) << x << ": every figure is exact in binary";
    return std::pair(report.smooth, report.frozen);
  };
  const std::pair<std::int64_t, std::int64_t> smooth{1, 0};
  const std::pair<std::int64_t, std::int64_t> frozen{0, 1};
  EXPECT_EQ(route(0.0), frozen) << "a kink at x itself: no step avoids it";
  EXPECT_EQ(route(-0.0), frozen);
  EXPECT_EQ(route(0x1p-13), smooth) << "the kink is within the first step: the step shrinks";
  EXPECT_EQ(route(-0x1p-13), smooth);
  EXPECT_EQ(route(0x1p-10), smooth) << "x - h touches 0, which is open too";
  EXPECT_EQ(route(-0x1p-10), smooth) << "x + h touches 0, which is open";
  EXPECT_EQ(route(0x1p-9), smooth);
  EXPECT_EQ(route(-0x1p-9), smooth) << "x + 2h touches 0, which is open";
  EXPECT_EQ(route(1.0), smooth);
  EXPECT_EQ(route(0x1p-30), frozen) << "closer to the kink than the smallest step";
}

TEST_F(GradientCheckTest, FrozenBranchesMakeAPiecewiseLinearNetworkExact) {
  // With the branches of the base point frozen, w -> sum(relu(w x)) is linear: the difference is the gradient.
  const auto report = check(
      [&](Tape& tape, std::span<const Var> in) {
        return linear(tape.input(f64(context, {2, 1}, {3, -3})), in[0], {.activation = Activation::relu});
      },
      {f64(context, {1, 1}, {0.0})});
  EXPECT_TRUE(report.passed) << report.worst;
  EXPECT_EQ(report.frozen, 1);
  EXPECT_LT(report.largest_error, 1e-12);
}

/// The fused backward on each device, and on a GPU by each strategy.
using DeviceGradientTest = test::DeviceTest;
INSTANTIATE_TEST_SUITE_P(Each, DeviceGradientTest, test::kDevices, test::device_name);

TEST_P(DeviceGradientTest, AnMlpPassesWithItsParameters) {
  for (const Strategy strategy : {Strategy::epilogue, Strategy::split, Strategy::pass})
    for (const Activation activation :
         {Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu_erf}) {
      SCOPED_TRACE(std::string(name_of(strategy)) + " " + std::string(name_of(activation)));
      const Context context = test::context_on(GetParam(), {.threads = 1, .strategy = strategy});
      // cuBLASLt's GELU epilogues are not double-precise: 3e-10 was measured.
      const bool in_epilogue = GetParam() == DeviceType::cuda && activation == Activation::gelu_tanh;
      const double gate = in_epilogue ? 1e-8 : 1e-10;
      ParameterSet set(context, Dtype::f64);
      const auto add_parameter = [&](const std::string& name, const Shape& shape, std::uint64_t seed) {
        return set.add(name, shape, fill_with(draw(seed, shape.size())));
      };
      const Parameter w1 = add_parameter("w1", {5, 3}, 1);
      const Parameter b1 = add_parameter("b1", {5}, 2);
      const Parameter w2 = add_parameter("w2", {4, 5}, 3);
      const Parameter b2 = add_parameter("b2", {4}, 4);
      const Tensor label = Tensor::from<std::int32_t>(context, {6}, {0, 1, 2, 3, 0, 1});
      const std::vector<double> w1_before = values_of(w1.value());
      const auto report = check(
          [&](Tape& tape, std::span<const Var> in) {
            const Var h = linear(in[0], tape.parameter(w1), tape.parameter(b1), {.activation = activation});
            return softmax_cross_entropy(linear(h, tape.parameter(w2), tape.parameter(b2)), label);
          },
          {f64(context, {6, 3}, draw(5, 18))}, {.absolute = gate, .parameters = set});
      EXPECT_TRUE(report.passed) << report.worst;
      EXPECT_EQ(report.smooth + report.frozen, 18 + 15 + 5 + 20 + 4);
      EXPECT_EQ(values_of(w1.value()), w1_before);
      EXPECT_FALSE(w1.has_gradient());
    }
}

TEST_F(GradientCheckTest, ChecksRandomDirectionsWhenThereAreManyCoordinates) {
  const auto f = [](Tape&, std::span<const Var> in) {
    return linear(in[0], in[1], {.activation = Activation::gelu_tanh});
  };
  const std::vector<Tensor> inputs{f64(context, {40, 50}, draw(1, 2000)), f64(context, {60, 50}, draw(2, 3000))};
  const auto report = check(f, inputs);
  EXPECT_TRUE(report.passed) << report.worst;
  EXPECT_EQ(report.smooth + report.frozen, 5);
  EXPECT_THAT(report.worst, testing::AnyOf(HasSubstr("random direction"), HasSubstr("forward")));
}

// Planted wrong gradients: an op that computes like relu(x w) but whose rule is wrong in one way.

enum class Fault {
  none,
  sign,
  factor_two,
  missing_term,
  transposed,
  mask_excludes_zero,
  mask_of_other_row,
  stale_mask,
  one_element,
  last_row_left_out,
  zero,
  nan,
  constant_offset,
};

/// y = relu(x) * relu(x), elementwise on a square matrix, with a rule in plain loops: dx = 2 relu(x) dy where x >= 0.
class FaultyRule final : public Rule {
 public:
  FaultyRule(const Tensor& x, Fault fault) : fault_(fault) { save(x); }

  void backward(Backward& sweep) override {
    const std::span<const double> x = saved(0).data<double>();
    const std::span<const double> dy = sweep.dy().data<double>();
    GradientRequest request = sweep.request(0);
    const std::span<double> d = request.d.mutable_data<double>();
    const auto n = static_cast<std::size_t>(saved(0).shape()[0]);
    for (std::size_t i = 0; i < n * n; ++i) {
      const std::size_t transposed = i % n * n + i / n;
      const std::size_t other_row = (i + n) % (n * n);
      double gradient = x[i] >= 0 ? (2 * x[i] + 1) * dy[i] : 0;
      switch (fault_) {
        case Fault::none: break;
        case Fault::sign: gradient = -gradient; break;
        case Fault::factor_two: gradient *= 2; break;
        case Fault::missing_term: gradient = x[i] >= 0 ? 2 * x[i] * dy[i] : 0; break;
        case Fault::transposed: gradient = x[transposed] >= 0 ? (2 * x[transposed] + 1) * dy[transposed] : 0; break;
        case Fault::mask_excludes_zero: gradient = x[i] > 0 ? gradient : -dy[i]; break;
        case Fault::mask_of_other_row: gradient = x[other_row] >= 0 ? (2 * x[i] + 1) * dy[i] : 0; break;
        case Fault::stale_mask: gradient = (2 * x[i] + 1) * dy[i]; break;
        case Fault::one_element: gradient += i == 4 ? 1e-7 : 0; break;
        case Fault::last_row_left_out: gradient = i / n + 1 == n ? 0 : gradient; break;
        case Fault::zero: gradient = 0; break;
        case Fault::nan: gradient = i == 0 ? std::nan("") : gradient; break;
        case Fault::constant_offset: gradient += 1e-8; break;
      }
      d[i] = gradient + (request.c.defined() ? request.c.data<double>()[i] : 0.0);
    }
    sweep.written(0);
  }

 private:
  Fault fault_;
};

Var faulty(const Var& x, Fault fault) {
  // Forward by trusted ops: relu(x)^2 + relu(x). The rule replaces their gradients.
  Recording op("faulty", {x});
  Tape tape(op.context(), {.mode = Mode::inference, .branches = op.branches()});
  const Var h = relu(tape.input(op.input(0)));
  return op.finish<FaultyRule>(add(mul(h, h), h).value(), op.input(0), fault);
}

class PlantedFaultTest : public testing::TestWithParam<Fault> {};

INSTANTIATE_TEST_SUITE_P(All, PlantedFaultTest,
                         testing::Values(Fault::none, Fault::sign, Fault::factor_two, Fault::missing_term,
                                         Fault::transposed, Fault::mask_excludes_zero, Fault::mask_of_other_row,
                                         Fault::stale_mask, Fault::one_element, Fault::last_row_left_out, Fault::zero,
                                         Fault::nan, Fault::constant_offset));

TEST_P(PlantedFaultTest, IsRejected) {
  const Context context = Context::cpu({.threads = 1});
  std::vector<double> x = draw(11, 9);
  x[2] = 0;  // exactly at the kink
  const auto report =
      check([&](Tape&, std::span<const Var> in) { return faulty(in[0], GetParam()); }, {f64(context, {3, 3}, x)});
  EXPECT_EQ(report.passed, GetParam() == Fault::none) << report.worst;
  EXPECT_EQ(report.frozen, 1);
}

TEST_F(GradientCheckTest, RefusesWhatItCannotJudge) {
  const auto square = [](Tape&, std::span<const Var> in) { return mul(in[0], in[0]); };
  EXPECT_THROW(check(square, {}), ValueError);
  EXPECT_THROW(check({}, {f64(context, {1}, {1})}), ValueError);
  try {
    check(square, {Tensor::zeros(context, {2}, Dtype::f32)});
    FAIL() << "f32 must be refused";
  } catch (const DtypeError& error) {
    EXPECT_THAT(error.what(), HasSubstr("must be f64, got f32"));
  }
  const Context other = Context::cpu({.threads = 1});
  EXPECT_THROW(check(square, {f64(context, {1}, {1}), f64(other, {1}, {1})}), DeviceError);
}

TEST_F(GradientCheckTest, ChecksParametersThatNobodyNamed) {
  ParameterSet set(context, Dtype::f64);
  const Parameter w = set.add("w", {3, 3}, fill_with(draw(3, 9)));
  const std::vector<double> before = values_of(w.value());
  for (const Fault fault : {Fault::none, Fault::one_element}) {
    const auto f = [&](Tape& tape, std::span<const Var> in) { return mul(in[0], faulty(tape.parameter(w), fault)); };
    const std::vector<Tensor> inputs{f64(context, {3, 3}, draw(4, 9))};
    const auto report = check(f, inputs);
    EXPECT_EQ(report.smooth + report.frozen, 18);
    EXPECT_EQ(report.passed, fault == Fault::none) << report.worst;
    EXPECT_THAT(report.worst, fault == Fault::none ? HasSubstr("") : HasSubstr("parameter \"w\", element 4"));
    EXPECT_EQ(values_of(w.value()), before);
    w.freeze();
    EXPECT_TRUE(check(f, inputs).passed) << "a frozen parameter is a constant";
    w.unfreeze();
  }
}

TEST_F(GradientCheckTest, LeavesNoGradientInParameters) {
  ParameterSet set(context, Dtype::f64);
  const Parameter w = set.add("w", {2}, fill_with({2, 3}));
  const auto f = [&](Tape& tape, std::span<const Var> in) { return mul(in[0], tape.parameter(w)); };
  EXPECT_TRUE(check(f, {f64(context, {2}, {1, 5})}).passed);
  EXPECT_FALSE(w.has_gradient());

  Tape tape(context);
  tape.backward(sum(tape.parameter(w)));
  EXPECT_THROW(check(f, {f64(context, {2}, {1, 5})}), StateError);
  EXPECT_EQ(values_of(w.gradient()), (std::vector<double>{1, 1}));
}

TEST_F(GradientCheckTest, LeavesParametersAsTheyWereWhenTheFunctionThrows) {
  ParameterSet set(context, Dtype::f64);
  const Parameter w = set.add("w", {1, 1}, fill_with({2}));
  int calls = 0;
  const auto f = [&](Tape& tape, std::span<const Var>) {
    if (++calls == 3) throw std::runtime_error("third call");
    const Var v = tape.parameter(w);
    return mul(v, v);
  };
  EXPECT_THROW(check(f, {}, {.parameters = set}), std::runtime_error);
  EXPECT_EQ(values_of(w.value())[0], 2);
  EXPECT_FALSE(w.has_gradient());
}

}  // namespace
}  // namespace fusegrad
