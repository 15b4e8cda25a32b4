// Standalone activations and activation gradients against fp64, in every dtype: values at the extremes, the closed-form
// table of GELU, exact fills with tolerance 0, aliased and padded operands.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/fills.h"
#include "tests/support/guarded.h"
#include "tests/support/masks.h"
#include "tests/support/matching.h"
#include "tests/support/tolerance.h"

#include <fusegrad/ops/activation_kernels.h>
#include <fusegrad/ops/linear_kernels.h>

namespace fusegrad::test {
namespace {

constexpr std::uint64_t kSeed = 77;
constexpr Dtype kDtypes[] = {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16};
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Size {
  std::int64_t rows;
  std::int64_t cols;
};

/// Pieces of 512 columns, chunks of 64, bytes of 8 and tasks of 2^15 elements: on, before and after each border.
constexpr Size kSizes[] = {{0, 5},   {5, 0},    {1, 1},    {3, 7},     {2, 8},     {5, 9},     {4, 63},
                           {3, 64},  {3, 65},   {2, 127},  {2, 128},   {2, 129},   {3, 511},   {2, 512},
                           {2, 513}, {1, 1500}, {300, 10}, {700, 130}, {70, 1000}, {70000, 1}, {1, 70000}};

CpuExecution execution() {
  static detail::ThreadPool pool(2);
  return {pool};
}

double relu(double z) { return z < 0 ? 0 : z; }

/// value(z) and slope(z) of GELU by the formulas of the definitions, in long double.
double gelu_tanh_value(double z) {
  const long double u = std::sqrt(2 / M_PIl) * (z + 0.044715L * z * z * z);
  return static_cast<double>(z / (1 + std::exp(-2 * u)));
}
double gelu_tanh_slope(double z) {
  const long double u = std::sqrt(2 / M_PIl) * (z + 0.044715L * z * z * z);
  const long double q = 1 / (1 + std::exp(-2 * u));
  const long double p = 1 / (1 + std::exp(2 * u));
  return static_cast<double>(q + 2 * z * q * p * std::sqrt(2 / M_PIl) * (1 + 3 * 0.044715L * z * z));
}
double gelu_erf_value(double z) { return static_cast<double>(0.5L * z * std::erfc(-z * std::sqrt(0.5L))); }
double gelu_erf_slope(double z) {
  return static_cast<double>(0.5L * std::erfc(-z * std::sqrt(0.5L)) +
                             z * std::exp(-0.5L * z * z) / std::sqrt(2 * M_PIl));
}

Values apply(Activation activation, const Values& z, Dtype dtype) {
  const GuardedMatrix gz(dtype, z);
  GuardedMatrix y(dtype, z.rows, z.cols);
  kernels::activation_forward(execution(), {.z = gz.matrix(), .y = y.matrix(), .activation = activation});
  EXPECT_TRUE(y.intact());
  return y.values();
}

/// act'(z), by an upstream gradient of ones.
Values slope(Activation activation, const Values& z, Dtype dtype) {
  const GuardedMatrix gz(dtype, z), ones(dtype, z.map([](double) { return 1; }));
  GuardedMatrix dz(dtype, z.rows, z.cols);
  kernels::activation_backward(
      execution(), {.dy = ones.matrix(), .dz = dz.matrix(), .activation = activation, .pre_activation = gz.matrix()});
  EXPECT_TRUE(dz.intact());
  return dz.values();
}

// ---- GELU

struct GeluRow {
  double x, tanh_value, tanh_slope, erf_value, erf_slope;
};

constexpr GeluRow kTable[] = {
    {0, 0, 0.5, 0, 0.5},
    {0.0001, 0.000050003989422797332379, 0.50007978845581300863, 0.000050003989422797365289, 0.50007978845581432502},
    {-0.0001, -0.000049996010577202667621, 0.49992021154418699137, -0.000049996010577202634711, 0.49992021154418567498},
    {0.5, 0.34571400982514392204, 0.86736990353464231156, 0.34573123063700655182, 0.86749512465616284253},
    {-0.5, -0.15428599017485607796, 0.13263009646535768844, -0.15426876936299344818, 0.13250487534383715747},
    {1, 0.84119199060827670478, 1.0829640838457825551, 0.84134474606854294859, 1.0833154705876862984},
    {-1, -0.15880800939172329522, -0.082964083845782555140, -0.15865525393145705141, -0.083315470587686298383},
    {1.5, 1.3995715769802329224, 1.1277107931514330816, 1.3997891980967129010, 1.1274691922299795254},
    {-1.5, -0.10042842301976707755, -0.12771079315143308158, -0.10021080190328709901, -0.12746919222997952542},
    {2, 1.9545976940877750188, 1.0860992566236183816, 1.9544997361036415856, 1.0852318010781968967},
    {-2, -0.045402305912224981219, -0.086099256623618381565, -0.045500263896358414401, -0.085231801078196896701},
    {3, 2.9963626079182269812, 1.0115841666309697262, 2.9959503059051097164, 1.0119456472041839270},
    {-3, -0.0036373920817730188378, -0.011584166630969726204, -0.0040496940948902835800, -0.011945647204183927000},
    {4, 3.9999297540518076273, 1.0003351231971226708, 3.9998733150326675203, 1.0005036496612264215},
    {-4, -0.000070245948192372689818, -0.00033512319712267075840, -0.00012668496733247968502,
     -0.00050364966122642148584},
    {5, 4.9999997708203803370, 1.0000015463619875326, 4.9999985667421406040, 1.0000071469460017923},
    {-5, -2.2917961966295060456e-7, -1.5463619875325945956e-6, -1.4332578593959695584e-6, -7.1469460017922946279e-6},
    {6, 5.9999999999156035330, 1.0000000007709973931, 5.9999999940804741298, 1.0000000354687094539},
    {-6, -8.4396467007622970837e-11, -7.7099739309536955117e-10, -5.9195258702261888442e-9, -3.5468709453902014781e-8},
    {8, 8.0000000000000000000, 1.0000000000000000000, 7.9999999999999950232, 1.0000000000000397961},
    {-8, -3.1077829375011112180e-21, -4.7147845041068415845e-20, -4.9767684594174272988e-15,
     -3.9796072610867959891e-14},
    {10, 10.000000000000000000, 1.0000000000000000000, 10.000000000000000000, 1.0000000000000000000},
    {-10, -1.2040923482098059937e-37, -2.7576380638540316073e-36, -7.6198530241605260660e-23,
     -7.6184000964648140857e-22},
};
constexpr std::int64_t kTableRows = std::size(kTable);

Values column(double GeluRow::*member) {
  Values values(kTableRows, 1);
  for (std::int64_t i = 0; i < kTableRows; ++i) values.at(i, 0) = kTable[i].*member;
  return values;
}

TEST(GeluKernelsTest, C01_TableInF64) {
  const Values x = column(&GeluRow::x);
  const auto check = [](const Values& got, const Values& expected) {
    return near(got, expected, expected.map(closed_form), Dtype::f64);
  };
  EXPECT_TRUE(check(apply(Activation::gelu_tanh, x, Dtype::f64), column(&GeluRow::tanh_value)));
  EXPECT_TRUE(check(slope(Activation::gelu_tanh, x, Dtype::f64), column(&GeluRow::tanh_slope)));
  EXPECT_TRUE(check(apply(Activation::gelu_erf, x, Dtype::f64), column(&GeluRow::erf_value)));
  EXPECT_TRUE(check(slope(Activation::gelu_erf, x, Dtype::f64), column(&GeluRow::erf_slope)));
}

TEST(GeluKernelsTest, C01_TableKeepsItsNegativeTail) {
  // Relative to the value itself: 1 + tanh(u) would have lost every digit from -6 on.
  const Values x = column(&GeluRow::x);
  const auto relative = [](double value) { return 1e-12 * std::fabs(value); };
  const Values tanh_value = column(&GeluRow::tanh_value), tanh_slope = column(&GeluRow::tanh_slope);
  EXPECT_TRUE(near(apply(Activation::gelu_tanh, x, Dtype::f64), tanh_value, tanh_value.map(relative), Dtype::f64));
  EXPECT_TRUE(near(slope(Activation::gelu_tanh, x, Dtype::f64), tanh_slope, tanh_slope.map(relative), Dtype::f64));
}

TEST(GeluKernelsTest, C02_Landmarks) {
  const auto at = [](Activation activation, double z, bool of_slope) {
    const Values x(1, 1, {z});
    return (of_slope ? slope(activation, x, Dtype::f64) : apply(activation, x, Dtype::f64)).at(0, 0);
  };
  EXPECT_NEAR(at(Activation::gelu_tanh, -0.75246142207101625849, false), -0.17004075057125405064, 1e-15);
  EXPECT_NEAR(at(Activation::gelu_tanh, -0.75246142207101625849, true), 0, 1e-15);
  EXPECT_NEAR(at(Activation::gelu_erf, -0.75179152469356445746, false), -0.16997120747990366169, 1e-15);
  EXPECT_NEAR(at(Activation::gelu_erf, -0.75179152469356445746, true), 0, 1e-15);
  EXPECT_NEAR(at(Activation::gelu_tanh, 1.4185040087908283555, true), 1.1289930686587717655, 2e-15);
  EXPECT_NEAR(at(Activation::gelu_erf, std::sqrt(2.0), true), 1.1289041451851547863, 2e-15);
}

TEST(GeluKernelsTest, C03_TheTwoFormsAreNotOne) {
  Values x(1, 2401);
  for (std::int64_t i = 0; i < x.cols; ++i) x.at(0, i) = -6 + 0.005 * static_cast<double>(i);
  const Values tanh_form = apply(Activation::gelu_tanh, x, Dtype::f64),
               erf_form = apply(Activation::gelu_erf, x, Dtype::f64);
  double distance = 0;
  double where = 0;
  for (std::int64_t i = 0; i < x.cols; ++i) {
    const double here = std::fabs(tanh_form.at(0, i) - erf_form.at(0, i));
    if (here > distance) {
      distance = here;
      where = std::fabs(x.at(0, i));
    }
  }
  EXPECT_NEAR(distance, 0.00047323463, 1e-11);
  EXPECT_NEAR(where, 2.7, 1e-9);
}

TEST(GeluKernelsTest, C04_Extremes) {
  for (const Activation activation : {Activation::gelu_tanh, Activation::gelu_erf})
    for (const Dtype dtype : kDtypes) {
      SCOPED_TRACE(std::string(name_of(activation)) + " " + std::string(name_of(dtype)));
      const double huge = dtype == Dtype::f16 ? 60000 : 1e20;
      const double stored = on_grid(huge, dtype);
      const double largest = dtype == Dtype::f64 ? 1.7e308 : dtype == Dtype::f16 ? 65504 : on_grid(3.3e38, dtype);
      const Values z(1, 12, {0.0, -0.0, 100, -100, huge, -huge, kInf, -kInf, kNan, largest, -largest, 41});
      EXPECT_TRUE(equal(apply(activation, z, dtype),
                        Values(1, 12, {0, 0, 100, 0, stored, 0, kInf, 0, kNan, largest, 0, 41}), dtype));
      EXPECT_TRUE(
          equal(slope(activation, z, dtype), Values(1, 12, {0.5, 0.5, 1, 0, 1, 0, 1, 0, kNan, 1, 0, 1}), dtype));
    }
}

TEST(GeluKernelsTest, MultiplesOf16AreExact) {
  for (const Activation activation : {Activation::gelu_tanh, Activation::gelu_erf})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
      const Values z(1, 7, {0, 16, -16, 32, -32, 160, -160});
      EXPECT_TRUE(equal(apply(activation, z, dtype), Values(1, 7, {0, 16, 0, 32, 0, 160, 0}), dtype));
      EXPECT_TRUE(equal(slope(activation, z, dtype), Values(1, 7, {0.5, 1, 0, 1, 0, 1, 0}), dtype));
    }
}

/// 2^18 points of [-14, 14], on the grid of `dtype`, denser around 0.
Values sweep(Dtype dtype) {
  Values z(64, 4096);
  for (std::size_t i = 0; i < z.elements.size(); ++i) {
    const double t = 2 * (static_cast<double>(i) + 0.5) / static_cast<double>(z.elements.size()) - 1;
    z.elements[i] = on_grid(14 * t * std::fabs(t), dtype);
  }
  return z;
}

TEST(GeluKernelsTest, ErrorsAreAsStated) {
  struct Form {
    Activation activation;
    double (*value)(double);
    double (*slope)(double);
  };
  for (const Form& form : {Form{Activation::gelu_tanh, gelu_tanh_value, gelu_tanh_slope},
                           Form{Activation::gelu_erf, gelu_erf_value, gelu_erf_slope}}) {
    SCOPED_TRACE(name_of(form.activation));
    const Values z = sweep(Dtype::f32);
    EXPECT_TRUE(near(apply(form.activation, z, Dtype::f32), z.map(form.value),
                     z.map([](double v) { return 0x1p-22 * std::fabs(v); }), Dtype::f64));
    EXPECT_TRUE(near(slope(form.activation, z, Dtype::f32), z.map(form.slope), z.map([](double) { return 0x1p-22; }),
                     Dtype::f64));
    const Values z64 = sweep(Dtype::f64);
    const auto stated = [](double value) { return 1e-14 * std::fabs(value) + 1e-16; };
    const Values value = z64.map(form.value), gradient = z64.map(form.slope);
    EXPECT_TRUE(near(apply(form.activation, z64, Dtype::f64), value, value.map(stated), Dtype::f64));
    EXPECT_TRUE(near(slope(form.activation, z64, Dtype::f64), gradient, gradient.map(stated), Dtype::f64));
    // 16-bit values are the fp32 ones, rounded once.
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      const Values coarse = sweep(dtype);
      EXPECT_TRUE(near(apply(form.activation, coarse, dtype), coarse.map(form.value),
                       coarse.map([](double v) { return 0x1p-22 * std::fabs(v); }), dtype));
    }
  }
}

// ---- ReLU

TEST(ReluKernelsTest, ForwardIsExact) {
  for (const auto [rows, cols] : kSizes) {
    const Values z = integers(rows, cols, kSeed, 2), b = integers(1, cols, kSeed + 1, 2);
    for (const Dtype dtype : kDtypes) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols) + " " + std::string(name_of(dtype)));
      for (const Dtype from : {dtype, accumulation_dtype(dtype)})
        for (const bool with_bias : {false, true}) {
          const Values sum = with_bias ? plus_row(z, b) : z;
          const GuardedMatrix gz(from, z, {.padding = 2, .offset = 1}), gb(Dtype::bf16, b);
          GuardedMatrix y(dtype, rows, cols, {.padding = 1});
          GuardedBytes mask(mask_bytes(rows, cols), 0xA5);
          kernels::activation_forward(execution(), {.z = gz.matrix(),
                                                    .b = with_bias ? gb.vector() : ConstVector{},
                                                    .y = y.matrix(),
                                                    .activation = Activation::relu,
                                                    .mask = mask.data()});
          ASSERT_TRUE(equal(y.values(), sum.map(relu), dtype));
          ASSERT_TRUE(is_mask_of(mask.data(), sum));
          ASSERT_TRUE(y.intact() && mask.intact());
        }
    }
  }
}

TEST(ReluKernelsTest, FollowsGivenBranches) {
  for (const auto [rows, cols] : {Size{3, 70}, Size{2, 1}, Size{5, 600}}) {
    const Values z = integers(rows, cols, kSeed, 2), b = integers(1, cols, kSeed + 1, 2);
    const std::vector<std::uint8_t> branches = mask_of(integers(rows, cols, kSeed + 2, 2));
    for (const Dtype dtype : kDtypes) {
      const GuardedMatrix gz(dtype, z), gb(dtype, b);
      GuardedMatrix y(dtype, rows, cols);
      GuardedBytes mask(mask_bytes(rows, cols), 0);
      kernels::activation_forward(execution(), {.z = gz.matrix(),
                                                .b = gb.vector(),
                                                .y = y.matrix(),
                                                .activation = Activation::relu,
                                                .mask = mask.data(),
                                                .branches = branches.data()});
      EXPECT_TRUE(equal(y.values(), selected(plus_row(z, b), branches), dtype));
      EXPECT_EQ(mask.copy(), branches) << "the branches taken are the mask of backward";
      EXPECT_TRUE(y.intact() && mask.intact());
    }
  }
}

TEST(ReluKernelsTest, A02_SpecialValues) {
  const double subnormal = 0x1p-149;
  const Values z(1, 9, {0.0, -0.0, subnormal, -subnormal, kInf, -kInf, kNan, 1, -1});
  EXPECT_TRUE(equal(apply(Activation::relu, z, Dtype::f32), Values(1, 9, {0, 0, subnormal, 0, kInf, 0, kNan, 1, 0}),
                    Dtype::f32));
  const std::vector<std::uint8_t> mask = mask_of(z);
  for (const double upstream : {3.0, kInf, kNan}) {
    const GuardedMatrix dy(Dtype::f32, z.map([&](double) { return upstream; }));
    GuardedMatrix dz(Dtype::f32, 1, 9);
    kernels::activation_backward(
        execution(), {.dy = dy.matrix(), .dz = dz.matrix(), .activation = Activation::relu, .mask = mask.data()});
    const Values got = dz.values();
    for (const int open : {0, 1, 2, 4, 7}) EXPECT_TRUE(within(got.at(0, open), upstream, 0, Dtype::f32)) << open;
    for (const int shut : {3, 5, 8}) EXPECT_EQ(got.at(0, shut), 0) << shut << ": selected, not multiplied";
  }
}

TEST(ReluKernelsTest, A02_SpecialValuesInEveryColumn) {
  // Whole chunks and the rest of a row take different ways, and so do rows with a bias.
  const double special[] = {0.0, -0.0, 0x1p-149, -0x1p-149, kInf, -kInf, kNan, 1, -1};
  constexpr std::int64_t kCols = 150;
  Values z(std::size(special), kCols), expected(std::size(special), kCols);
  for (std::int64_t i = 0; i < z.rows; ++i)
    for (std::int64_t j = 0; j < kCols; ++j) {
      z.at(i, j) = special[static_cast<std::size_t>((i + j) % z.rows)];
      expected.at(i, j) = relu(z.at(i, j));
    }
  const GuardedMatrix gz(Dtype::f32, z), zeros(Dtype::f32, Values(1, kCols));
  for (const bool with_bias : {false, true}) {
    GuardedMatrix y(Dtype::f32, z.rows, kCols);
    GuardedBytes mask(mask_bytes(z.rows, kCols), 0xA5);
    kernels::activation_forward(execution(), {.z = gz.matrix(),
                                              .b = with_bias ? zeros.vector() : ConstVector{},
                                              .y = y.matrix(),
                                              .activation = Activation::relu,
                                              .mask = mask.data()});
    EXPECT_TRUE(equal(y.values(), expected, Dtype::f32)) << with_bias;
    EXPECT_TRUE(is_mask_of(mask.data(), z)) << with_bias;
  }
}

TEST(ReluKernelsTest, RowsWithoutColumnsCostNothing) {
  // Rows that take a nanosecond each would take a quarter of an hour.
  constexpr std::int64_t kRows = std::int64_t{1} << 40;
  float none = 0;
  const Matrix empty{.data = &none, .rows = kRows};
  for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_tanh}) {
    kernels::activation_forward(execution(), {.z = empty, .y = empty, .activation = activation});
    kernels::activation_backward(
        execution(),
        {.dy = empty, .dz = empty, .activation = activation, .pre_activation = empty, .bias = {.data = &none}});
  }
  kernels::column_sum(execution(), {.dz = empty, .bias = {.data = &none}});
}

// ---- gradients

TEST(ActivationGradientTest, ReluIsExactAndSumsItsColumns) {
  for (const auto [rows, cols] : kSizes) {
    const Values dy = integers(rows, cols, kSeed, 2), c = integers(rows, cols, kSeed + 1, 2);
    const Values bias_c = integers(1, cols, kSeed + 2, 2);
    std::vector<std::uint8_t> mask = mask_of(integers(rows, cols, kSeed + 3, 2));
    const Values dz = selected(dy, mask);
    flip_padding(mask.data(), rows, cols);
    for (const Dtype dtype : kDtypes) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols) + " " + std::string(name_of(dtype)));
      const Dtype wide = accumulation_dtype(dtype);
      const GuardedMatrix gdy(dtype, dy, {.padding = 1, .offset = 1});
      GuardedMatrix gdz(dtype, rows, cols, {.padding = 2}), bias(wide, 1, cols);
      kernels::ActivationBackward args{.dy = gdy.matrix(),
                                       .dz = gdz.matrix(),
                                       .activation = Activation::relu,
                                       .mask = mask.data(),
                                       .bias = bias.vector()};
      kernels::activation_backward(execution(), args);
      ASSERT_TRUE(equal(gdz.values(), dz, dtype));
      ASSERT_TRUE(equal(bias.values(), column_sums(dz), wide));

      // c is added after the activation and is no part of the sums; c is dz, bias_c is bias.
      gdz.fill(c);
      bias.fill(bias_c);
      args.c = gdz.matrix();
      args.bias_c = bias.vector();
      kernels::activation_backward(execution(), args);
      ASSERT_TRUE(equal(gdz.values(), sum(dz, c), dtype));
      ASSERT_TRUE(equal(bias.values(), sum(column_sums(dz), bias_c), wide));
      ASSERT_TRUE(gdz.intact() && bias.intact());

      // dz is dy.
      GuardedMatrix in_place(dtype, dy);
      kernels::activation_backward(
          execution(),
          {.dy = in_place.matrix(), .dz = in_place.matrix(), .activation = Activation::relu, .mask = mask.data()});
      ASSERT_TRUE(equal(in_place.values(), dz, dtype));
    }
  }
}

TEST(ActivationGradientTest, WithoutActivationCopiesOrAdds) {
  const Values dy = integers(9, 600, kSeed, 2), c = integers(9, 600, kSeed + 1, 2);
  for (const Dtype from : kDtypes)
    for (const Dtype to : kDtypes) {
      const GuardedMatrix gdy(from, dy), gc(to, c);
      GuardedMatrix dz(to, 9, 600);
      kernels::activation_backward(execution(), {.dy = gdy.matrix(), .dz = dz.matrix()});
      EXPECT_TRUE(equal(dz.values(), dy, to));
      kernels::activation_backward(execution(), {.dy = gdy.matrix(), .c = gc.matrix(), .dz = dz.matrix()});
      EXPECT_TRUE(equal(dz.values(), sum(dy, c), to));
    }
}

TEST(ActivationGradientTest, GeluStaysWithinItsBound) {
  for (const auto [rows, cols] : {Size{3, 7}, Size{65, 513}, Size{700, 64}})
    for (const Dtype dtype : kDtypes) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols) + " " + std::string(name_of(dtype)));
      const Dtype wide = accumulation_dtype(dtype);
      const Values z = normal(rows, cols, kSeed, dtype), dy = normal(rows, cols, kSeed + 1, dtype);
      for (const bool erf : {false, true}) {
        const Values slope = z.map(erf ? gelu_erf_slope : gelu_tanh_slope);
        const Values ref = dy.zip(slope, [](double g, double s) { return g * s; });
        const Values bound =
            dy.zip(slope, [&](double g, double s) { return gelu_gradient(g, s, 0, dtype, dtype, true); });
        const GuardedMatrix gz(dtype, z, {.padding = 1}), gdy(dtype, dy);
        GuardedMatrix dz(dtype, rows, cols), bias(wide, 1, cols);
        kernels::activation_backward(execution(), {.dy = gdy.matrix(),
                                                   .dz = dz.matrix(),
                                                   .activation = erf ? Activation::gelu_erf : Activation::gelu_tanh,
                                                   .pre_activation = gz.matrix(),
                                                   .bias = bias.vector()});
        EXPECT_TRUE(near(dz.values(), ref, bound, dtype));
        const Values t = column_sums(absolute(ref)).zip(column_sums(bound), [&](double total, double error) {
          return column_sum(static_cast<double>(rows), total + error, error, dtype, wide);
        });
        EXPECT_TRUE(near(bias.values(), column_sums(ref), t, wide));
      }
    }
}

TEST(ActivationKernelsTest, GeluSavesTheSumBeforeTheActivation) {
  const Values z = integers(40, 130, kSeed, 2), b = integers(1, 130, kSeed + 1, 2);
  for (const Dtype dtype : kDtypes) {
    const GuardedMatrix gz(accumulation_dtype(dtype), z), gb(dtype, b);
    GuardedMatrix y(dtype, 40, 130), saved(dtype, 40, 130, {.padding = 3});
    kernels::activation_forward(execution(), {.z = gz.matrix(),
                                              .b = gb.vector(),
                                              .y = y.matrix(),
                                              .activation = Activation::gelu_tanh,
                                              .pre_activation = saved.matrix()});
    EXPECT_TRUE(equal(saved.values(), plus_row(z, b), dtype));
    EXPECT_EQ(y.values().elements, apply(Activation::gelu_tanh, plus_row(z, b), dtype).elements);
    EXPECT_TRUE(equal(gz.values(), z, gz.dtype())) << "z is read only";
    EXPECT_TRUE(saved.intact());
  }
}

TEST(ActivationKernelsTest, ResultsDoNotDependOnTheNumberOfThreads) {
  const Values z = normal(900, 130, kSeed, Dtype::f32), dy = normal(900, 130, kSeed + 1, Dtype::f32);
  const GuardedMatrix gz(Dtype::f32, z), gdy(Dtype::f32, dy);
  std::vector<std::vector<std::byte>> bits;
  for (const int threads : {1, 2, 3, 4, 8}) {
    detail::ThreadPool pool(threads);
    GuardedMatrix y(Dtype::f32, 900, 130), dz(Dtype::f32, 900, 130), bias(Dtype::f32, 1, 130);
    kernels::activation_forward({pool}, {.z = gz.matrix(), .y = y.matrix(), .activation = Activation::gelu_erf});
    kernels::activation_backward({pool}, {.dy = gdy.matrix(),
                                          .dz = dz.matrix(),
                                          .activation = Activation::gelu_erf,
                                          .pre_activation = gz.matrix(),
                                          .bias = bias.vector()});
    std::vector<std::byte> all = y.bytes();
    for (const GuardedMatrix* matrix : {&dz, &bias}) {
      const std::vector<std::byte> own = matrix->bytes();
      all.insert(all.end(), own.begin(), own.end());
    }
    bits.push_back(all);
    EXPECT_EQ(bits.front(), bits.back()) << threads << " threads";
  }
}

}  // namespace
}  // namespace fusegrad::test
