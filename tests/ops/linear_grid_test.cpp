// The linear op over a grid of shapes, fused and unfused, forward and backward, against fp64.
//
// Exact integer fills leave no room: every path must give the same bits. GELU is held to its bound.
#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

#include "tests/ops/linear_cases.h"
#include "tests/support/device.h"
#include "tests/support/fills.h"
#include "tests/support/gemm_shapes.h"
#include "tests/support/matching.h"
#include "tests/support/tensors.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

#include <fusegrad/fusegrad.h>

namespace fusegrad {
namespace {

using test::Values;

// GELU and its slope, written again on purpose: an oracle must not share code with what it judges. In extended
// precision, because an fp64 result is held to a few roundings.
double reference_gelu(Activation activation, long double z) {
  if (activation == Activation::gelu_erf) {
    return static_cast<double>(0.5L * z * std::erfc(-z / std::numbers::sqrt2_v<long double>));
  }
  const long double u = std::sqrt(2 / std::numbers::pi_v<long double>) * (z + 0.044715L * z * z * z);
  return static_cast<double>(z / (1 + std::exp(-2 * u)));
}

double reference_slope(Activation activation, long double z) {
  constexpr long double kPi = std::numbers::pi_v<long double>;
  if (activation == Activation::gelu_erf) {
    const long double density = std::exp(-z * z / 2) / std::sqrt(2 * kPi);
    return static_cast<double>(0.5L * std::erfc(-z / std::numbers::sqrt2_v<long double>) + z * density);
  }
  const long double u = std::sqrt(2 / kPi) * (z + 0.044715L * z * z * z);
  const long double du = std::sqrt(2 / kPi) * (1 + 3 * 0.044715L * z * z);
  const long double q = 1 / (1 + std::exp(-2 * u));
  return static_cast<double>(q + 2 * z * q * (1 - q) * du);
}

constexpr std::uint64_t kSeed = 20250607;

using test::LinearCase;

class LinearGridTest : public testing::TestWithParam<LinearCase> {
 protected:
  void SetUp() override { test::skip_without(GetParam().device); }

  Initializer initial(const Values& values) const { return fill_with(values.elements); }

  Dtype dtype = GetParam().dtype;
  Context context = GetParam().context();
};

INSTANTIATE_TEST_SUITE_P(All, LinearGridTest, testing::ValuesIn(test::linear_cases()), test::name_of_case);

/// Operands of one layer, as thin integers: every sum below is exact in bf16.
struct Layer {
  Values x, w, b, dy;

  Layer(const test::GemmShape& s, std::uint64_t seed)
      : x(test::thinned_integers(s.m, s.k, seed, 2, 24, 24)),
        w(test::integers(s.n, s.k, seed + 1, 1)),
        b(test::integers(1, s.n, seed + 2, 2)),
        dy(test::thinned_integers(s.m, s.n, seed + 3, 2, 24, 24)) {}
};

TEST_P(LinearGridTest, ExactFillsHaveToleranceZero) {
  for (const test::GemmShape& s : test::gemm_shapes(kSeed, std::int64_t{1} << 22)) {
    for (const Activation activation : {Activation::none, Activation::relu}) {
      SCOPED_TRACE(to_string(s) + " " + std::string(name_of(activation)));
      const Layer c(s, kSeed);
      ParameterSet set(context, dtype);
      const Parameter w = set.add("w", {s.n, s.k}, initial(c.w));
      const Parameter b = set.add("b", {s.n}, initial(c.b));
      poison_gradient(w);
      poison_gradient(b);
      const Values z = test::plus_row(test::product(c.x, test::transposed(c.w)), c.b);
      const bool relu = activation == Activation::relu;
      const Values y_ref = z.map([&](double v) { return relu ? std::max(v, 0.0) : v; });
      const Values dz = c.dy.zip(z, [&](double g, double v) { return relu && !(v >= 0) ? 0.0 : g; });
      Values dx_ref = test::product(dz, c.w);
      Values dw_ref = test::product(test::transposed(dz), c.x);
      Values db_ref = test::column_sums(dz);
      for (int pass = 1; pass <= 2; ++pass) {  // the second accumulates
        Tape tape(context);
        const Var x = tape.variable(test::tensor_of(context, dtype, c.x));
        const Var y = linear(x, tape.parameter(w), tape.parameter(b), {.activation = activation});
        ASSERT_TRUE(test::equal(test::values_of(y.value()), y_ref, dtype));
        tape.backward(y, test::tensor_of(context, dtype, c.dy));
        const auto times = [&](double v) { return pass * v; };
        ASSERT_TRUE(test::equal(test::values_of(tape.gradient(x)), dx_ref, dtype));
        ASSERT_TRUE(test::equal(test::values_of(w.gradient()), dw_ref.map(times), accumulation_dtype(dtype)));
        const Values db = test::values_of(b.gradient());
        ASSERT_TRUE(test::equal(db, db_ref.map(times), accumulation_dtype(dtype)));
      }
    }
  }
}

TEST_P(LinearGridTest, TwoLayersAbsorbExactly) {
  // h = relu(x w1 + b1), y = h w2: the second layer's dx carries h's mask and b1's gradient.
  for (const test::GemmShape& s : test::gemm_shapes(kSeed + 1, std::int64_t{1} << 20)) {
    SCOPED_TRACE(to_string(s));
    const Layer c(s, kSeed + 10);
    const std::int64_t out = 5;
    const Values w2 = test::integers(out, s.n, kSeed + 20, 1);
    const Values dy = test::thinned_integers(s.m, out, kSeed + 21, 1, 4, 24);
    ParameterSet set(context, dtype);
    const Parameter w1 = set.add("w1", {s.n, s.k}, initial(c.w));
    const Parameter b1 = set.add("b1", {s.n}, initial(c.b));
    const Values z = test::plus_row(test::product(c.x, test::transposed(c.w)), c.b);
    const Values dz = test::product(dy, w2).zip(z, [](double g, double v) { return v >= 0 ? g : 0.0; });
    Tape tape(context);
    const Var x = tape.variable(test::tensor_of(context, dtype, c.x));
    const Var h = linear(x, tape.parameter(w1), tape.parameter(b1), {.activation = Activation::relu});
    const Var y = linear(h, tape.input(test::tensor_of(context, dtype, w2)));
    const std::int64_t absorbed = context.counters().absorbed;
    tape.backward(y, test::tensor_of(context, dtype, dy));
    EXPECT_EQ(context.counters().absorbed - absorbed, GetParam().fusion == Fusion::on ? 1 : 0);
    ASSERT_TRUE(test::equal(test::values_of(w1.gradient()), test::product(test::transposed(dz), c.x),
                            accumulation_dtype(dtype)));
    const Values db1 = test::on_grid(test::column_sums(dz), GetParam().absorbed_bias());
    ASSERT_TRUE(test::equal(test::values_of(b1.gradient()), db1, accumulation_dtype(dtype)));
    ASSERT_TRUE(test::equal(test::values_of(tape.gradient(x)), test::product(dz, c.w), dtype));
  }
}

TEST_P(LinearGridTest, GeluStaysWithinItsBound) {
  for (const test::GemmShape& s : test::gemm_shapes(kSeed + 2, std::int64_t{1} << 20)) {
    for (const Activation activation : {Activation::gelu_tanh, Activation::gelu_erf}) {
      SCOPED_TRACE(to_string(s) + " " + std::string(name_of(activation)));
      const bool in_epilogue = activation == Activation::gelu_tanh && GetParam().device == DeviceType::cuda &&
                               GetParam().fusion == Fusion::on;
      const Values x = test::normal(s.m, s.k, kSeed + 30, GetParam().grid());
      const Values w = test::on_grid(test::normal(s.n, s.k, kSeed + 31, GetParam().grid()).map([&](double v) {
        return v / std::exp2(std::ceil(std::log2(1.0 + static_cast<double>(s.k)) / 2));
      }),
                                     GetParam().grid());
      const Values b = test::normal(1, s.n, kSeed + 32, GetParam().grid());
      const Values dy = test::normal(s.m, s.n, kSeed + 33, GetParam().grid());
      Tape tape(context);
      const Var xv = tape.input(test::tensor_of(context, dtype, x));
      const Var wv = tape.input(test::tensor_of(context, dtype, w));
      const Var bv = tape.variable(test::tensor_of(context, {s.n}, dtype, b));
      const Var y = linear(xv, wv, bv, {.activation = activation});
      const Values z = test::plus_row(test::product(x, test::transposed(w)), b);
      const Values S = test::product(test::absolute(x), test::transposed(test::absolute(w)));
      const double k = static_cast<double>(s.k);
      Values value = z, slope = z, tolerance = z, dz_tolerance = z;
      for (std::int64_t i = 0; i < s.m; ++i) {
        for (std::int64_t j = 0; j < s.n; ++j) {
          const double v = z.at(i, j);
          value.at(i, j) = reference_gelu(activation, v);
          slope.at(i, j) = reference_slope(activation, v);
          const double t_z = test::alarm_plus(k, S.at(i, j), b.at(0, j), dtype);
          tolerance.at(i, j) = test::gelu(v, value.at(i, j), t_z, dtype);
          if (in_epilogue) tolerance.at(i, j) += test::epilogue_gelu(v, b.at(0, j), dtype);
          // The saved z carries the product's error too; 1.13 bounds the slope of the slope as well.
          dz_tolerance.at(i, j) = test::gelu_gradient(dy.at(i, j), slope.at(i, j), 0, dtype, dtype, false) +
                                  1.13 * t_z * std::fabs(dy.at(i, j));
          if (in_epilogue) dz_tolerance.at(i, j) += test::epilogue_gelu(v, b.at(0, j), dtype) * std::fabs(dy.at(i, j));
        }
      }
      ASSERT_TRUE(test::near(test::values_of(y.value()), value, tolerance, dtype));
      tape.backward(y, test::tensor_of(context, dtype, dy));
      const Values dz = dy.zip(slope, [](double g, double d) { return g * d; });
      const Values terms = test::column_sums(test::absolute(dz));
      const Values errors = test::column_sums(dz_tolerance);
      Values db_tolerance(1, s.n);
      for (std::int64_t j = 0; j < s.n; ++j) {
        db_tolerance.at(0, j) =
            test::column_sum(static_cast<double>(s.m), terms.at(0, j), errors.at(0, j), dtype, dtype);
      }
      ASSERT_TRUE(test::near(test::values_of(tape.gradient(bv)), test::column_sums(dz), db_tolerance, dtype));
    }
  }
}

}  // namespace
}  // namespace fusegrad
