// The kernels of the fused affine map against fp64: exact integer fills with tolerance 0, random and adversarial fills
// within the alarm bound, on shapes where paths change, in every dtype, with padded and odd layouts.
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/fills.h"
#include "tests/support/gemm_shapes.h"
#include "tests/support/guarded.h"
#include "tests/support/masks.h"
#include "tests/support/matching.h"
#include "tests/support/tolerance.h"

#include <fusegrad/ops/linear_kernels.h>

namespace fusegrad::test {
namespace {

constexpr std::uint64_t kSeed = 20240611;
constexpr Dtype kDtypes[] = {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

double relu(double z) { return z < 0 ? 0 : z; }

/// Each case once with each library that may multiply.
class LinearKernelsTest : public testing::TestWithParam<ProductLibrary> {
 protected:
  void SetUp() override {
    if (GetParam() == ProductLibrary::onednn && !kWithOnednn) GTEST_SKIP() << "this fusegrad was built without oneDNN";
  }
};
using LinearMaskTest = LinearKernelsTest;

const auto kLibraries = testing::Values(ProductLibrary::eigen, ProductLibrary::onednn);
std::string library_name(const testing::TestParamInfo<ProductLibrary>& info) {
  return std::string(name_of(info.param));
}
INSTANTIATE_TEST_SUITE_P(Each, LinearKernelsTest, kLibraries, library_name);
INSTANTIATE_TEST_SUITE_P(Each, LinearMaskTest, kLibraries, library_name);

/// Two threads, so that tasks meet other tasks' memory, and the running case's library.
CpuExecution execution() {
  static detail::ThreadPool pool(2);
  return {pool, LinearKernelsTest::GetParam()};
}

Layout layout_of(std::size_t index) {
  return {.padding = static_cast<std::int64_t>(index % 3), .offset = static_cast<std::int64_t>(index / 2 % 2)};
}

/// What one layer computes, forward and backward.
struct Layer {
  GemmShape shape;
  Values x, w, b, dz, c_dx, c_dw, c_bias_n, c_bias_k;
  std::vector<std::uint8_t> mask;  // of x, so [m, k]
};

Layer make_layer(const GemmShape& shape, std::uint64_t seed, auto fill) {
  const auto [m, n, k] = shape;
  Layer layer{.shape = shape,
              .x = fill(m, k, seed, 2),
              .w = fill(n, k, seed + 1, 1),
              .b = fill(1, n, seed + 2, 2),
              .dz = fill(m, n, seed + 3, 2),
              .c_dx = fill(m, k, seed + 4, 2),
              .c_dw = fill(n, k, seed + 5, 2),
              .c_bias_n = fill(1, n, seed + 6, 2),
              .c_bias_k = fill(1, k, seed + 7, 2),
              .mask = {}};
  layer.mask = mask_of(integers(m, k, seed + 8, 2));
  return layer;
}

Layer exact_layer(const GemmShape& shape, std::uint64_t seed) { return make_layer(shape, seed, integers); }

/// Calls f(layer, index) for every shape of the grid within the limit.
void for_each_exact_layer(auto f, std::int64_t limit = std::int64_t{1} << 28) {
  const std::vector<GemmShape> shapes = gemm_shapes(kSeed, limit);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    SCOPED_TRACE(to_string(shapes[i]) + " seed " + std::to_string(kSeed));
    f(exact_layer(shapes[i], kSeed + 10 * i), i);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST_P(LinearKernelsTest, ForwardIsExactOnIntegers) {
  std::size_t nonzero_layers = 0;
  for_each_exact_layer([&](const Layer& layer, std::size_t index) {
    const Values product = test::product(layer.x, transposed(layer.w));
    const Values z = plus_row(product, layer.b);
    nonzero_layers += z.size() > 0 && mostly_nonzero(z) ? 1 : 0;
    for (const Dtype dtype : kDtypes) {
      SCOPED_TRACE(name_of(dtype));
      const Layout layout = layout_of(index);
      const GuardedMatrix x(dtype, layer.x, layout), w(dtype, layer.w, layout), b(dtype, layer.b, layout);
      GuardedMatrix y(dtype, z.rows, z.cols, layout);

      kernels::linear_forward(execution(), {.x = x.matrix(), .w = w.matrix(), .y = y.matrix()});
      EXPECT_TRUE(equal(y.values(), product, dtype));

      y.poison();
      kernels::linear_forward(execution(), {.x = x.matrix(), .w = w.matrix(), .b = b.vector(), .y = y.matrix()});
      EXPECT_TRUE(equal(y.values(), z, dtype));

      y.poison();
      GuardedBytes mask(mask_bytes(z.rows, z.cols), 0xA5);
      kernels::linear_forward(execution(), {.x = x.matrix(),
                                            .w = w.matrix(),
                                            .b = b.vector(),
                                            .y = y.matrix(),
                                            .activation = Activation::relu,
                                            .mask = mask.data()});
      EXPECT_TRUE(equal(y.values(), z.map(relu), dtype));
      EXPECT_TRUE(is_mask_of(mask.data(), z));
      EXPECT_TRUE(y.intact() && mask.intact());
    }
  });
  EXPECT_GE(nonzero_layers, 60u) << "too many fills are mostly zeros to prove much";
}

TEST_P(LinearKernelsTest, InputGradientIsExactOnIntegers) {
  for_each_exact_layer([](const Layer& layer, std::size_t index) {
    const Values plain = product(layer.dz, layer.w);
    const Values masked = selected(plain, layer.mask);
    const Values added = sum(plain, layer.c_dx);
    const Values added_masked = selected(added, layer.mask);
    for (const Dtype dtype : kDtypes) {
      SCOPED_TRACE(name_of(dtype));
      const Dtype wide = accumulation_dtype(dtype);
      const Layout layout = layout_of(index + 1);
      const GuardedMatrix dz(dtype, layer.dz, layout), w(dtype, layer.w, layout), c(dtype, layer.c_dx, layout);
      GuardedMatrix dx(dtype, plain.rows, plain.cols, layout);
      GuardedMatrix bias(wide, 1, plain.cols, layout);
      GuardedMatrix bias_c(wide, layer.c_bias_k);
      kernels::LinearInputGradient args{.dz = dz.matrix(), .w = w.matrix(), .dx = dx.matrix()};

      kernels::linear_input_gradient(execution(), args);
      EXPECT_TRUE(equal(dx.values(), plain, dtype));

      dx.poison();
      args.activation = Activation::relu;
      args.mask = layer.mask.data();
      args.bias = bias.vector();
      kernels::linear_input_gradient(execution(), args);
      EXPECT_TRUE(equal(dx.values(), masked, dtype));
      EXPECT_TRUE(equal(bias.values(), column_sums(masked), wide));

      dx.poison();
      bias.poison();
      args.c = c.matrix();
      args.bias_c = bias_c.vector();
      kernels::linear_input_gradient(execution(), args);
      EXPECT_TRUE(equal(dx.values(), added_masked, dtype));
      EXPECT_TRUE(equal(bias.values(), sum(column_sums(added_masked), layer.c_bias_k), wide));

      // In place: c is dx and bias_c is bias.
      dx.fill(layer.c_dx);
      args.c = dx.matrix();
      args.bias = bias_c.vector();
      kernels::linear_input_gradient(execution(), args);
      EXPECT_TRUE(equal(dx.values(), added_masked, dtype));
      EXPECT_TRUE(equal(bias_c.values(), sum(column_sums(added_masked), layer.c_bias_k), wide));

      // Without activation, bias summed in dz's own dtype, dx in the accumulation dtype.
      GuardedMatrix wide_dx(wide, plain.rows, plain.cols, layout);
      GuardedMatrix narrow_bias(dtype, 1, plain.cols);
      kernels::linear_input_gradient(
          execution(), {.dz = dz.matrix(), .w = w.matrix(), .dx = wide_dx.matrix(), .bias = narrow_bias.vector()});
      EXPECT_TRUE(equal(wide_dx.values(), plain, wide));
      EXPECT_TRUE(equal(narrow_bias.values(), column_sums(plain), dtype));

      EXPECT_TRUE(dx.intact() && wide_dx.intact());
      EXPECT_TRUE(bias.intact() && bias_c.intact() && narrow_bias.intact());
    }
  });
}

TEST_P(LinearKernelsTest, WeightGradientIsExactOnIntegers) {
  for_each_exact_layer([](const Layer& layer, std::size_t index) {
    const Values plain = product(transposed(layer.dz), layer.x);
    const Values added = sum(plain, layer.c_dw);
    const Values bias_sums = column_sums(layer.dz);
    for (const Dtype dtype : kDtypes) {
      SCOPED_TRACE(name_of(dtype));
      const Dtype wide = accumulation_dtype(dtype);
      const Layout layout = layout_of(index + 2);
      const GuardedMatrix dz(dtype, layer.dz, layout), x(dtype, layer.x, layout), c(wide, layer.c_dw, layout);
      GuardedMatrix dw(wide, plain.rows, plain.cols, layout);
      GuardedMatrix bias(wide, 1, bias_sums.cols, layout);
      GuardedMatrix bias_c(wide, layer.c_bias_n);
      kernels::LinearWeightGradient args{.dz = dz.matrix(), .x = x.matrix(), .dw = dw.matrix()};

      args.bias = bias.vector();
      kernels::linear_weight_gradient(execution(), args);
      EXPECT_TRUE(equal(dw.values(), plain, wide));
      EXPECT_TRUE(equal(bias.values(), bias_sums, wide));

      dw.poison();
      bias.poison();
      args.c = c.matrix();
      args.bias_c = bias_c.vector();
      kernels::linear_weight_gradient(execution(), args);
      EXPECT_TRUE(equal(dw.values(), added, wide));
      EXPECT_TRUE(equal(bias.values(), sum(bias_sums, layer.c_bias_n), wide));

      dw.fill(layer.c_dw);
      args.c = dw.matrix();
      args.bias = bias_c.vector();
      kernels::linear_weight_gradient(execution(), args);
      EXPECT_TRUE(equal(dw.values(), added, wide));
      EXPECT_TRUE(equal(bias_c.values(), sum(bias_sums, layer.c_bias_n), wide));

      // In dz's own dtype, without bias.
      GuardedMatrix narrow_dw(dtype, plain.rows, plain.cols, layout);
      kernels::linear_weight_gradient(execution(), {.dz = dz.matrix(), .x = x.matrix(), .dw = narrow_dw.matrix()});
      EXPECT_TRUE(equal(narrow_dw.values(), plain, dtype));

      EXPECT_TRUE(dw.intact() && narrow_dw.intact() && bias.intact() && bias_c.intact());
    }
  });
}

TEST_P(LinearKernelsTest, ColumnSumIsExactOnIntegers) {
  for_each_exact_layer([](const Layer& layer, std::size_t index) {
    for (const Dtype dtype : kDtypes) {
      SCOPED_TRACE(name_of(dtype));
      for (const Dtype out : {dtype, accumulation_dtype(dtype)}) {
        const GuardedMatrix dz(dtype, layer.dz, layout_of(index));
        GuardedMatrix bias(out, 1, layer.dz.cols, layout_of(index));
        kernels::column_sum(execution(), {.dz = dz.matrix(), .bias = bias.vector()});
        EXPECT_TRUE(equal(bias.values(), column_sums(layer.dz), out));
        bias.fill(layer.c_bias_n);
        kernels::column_sum(execution(), {.dz = dz.matrix(), .bias = bias.vector(), .bias_c = bias.vector()});
        EXPECT_TRUE(equal(bias.values(), sum(column_sums(layer.dz), layer.c_bias_n), out));
        EXPECT_TRUE(bias.intact());
      }
    }
  });
}

TEST_P(LinearKernelsTest, ProductIsExactOnIntegers) {
  using kernels::Transpose;
  for_each_exact_layer(
      [](const Layer& layer, std::size_t index) {
        const Values ref = product(layer.dz, layer.w);
        for (const Dtype dtype : kDtypes) {
          SCOPED_TRACE(name_of(dtype));
          const Dtype wide = accumulation_dtype(dtype);
          const Layout layout = layout_of(index);
          const GuardedMatrix a(dtype, layer.dz, layout), at(dtype, transposed(layer.dz), layout);
          const GuardedMatrix b(dtype, layer.w, layout), bt(dtype, transposed(layer.w), layout);
          for (const Transpose transpose_a : {Transpose::no, Transpose::yes})
            for (const Transpose transpose_b : {Transpose::no, Transpose::yes}) {
              GuardedMatrix d(wide, ref.rows, ref.cols, layout);
              kernels::product(execution(), {.a = (transpose_a == Transpose::yes ? at : a).matrix(),
                                             .transpose_a = transpose_a,
                                             .b = (transpose_b == Transpose::yes ? bt : b).matrix(),
                                             .transpose_b = transpose_b,
                                             .d = d.matrix()});
              EXPECT_TRUE(equal(d.values(), ref, wide));
              EXPECT_TRUE(d.intact());
            }
        }
      },
      std::int64_t{1} << 22);
}

/// The layer and its truth with bounds, for fills whose sums are not exact.
void expect_within_bounds(const Layer& layer, Dtype dtype) {
  const auto [m, n, k] = layer.shape;
  const Dtype wide = accumulation_dtype(dtype);
  const auto bound = [&](const Values& S, double terms) {
    return S.map([&](double s) { return alarm(terms, s, dtype); });
  };
  const GuardedMatrix x(dtype, layer.x), w(dtype, layer.w), b(dtype, layer.b), dz(dtype, layer.dz);

  const Values z = plus_row(product(layer.x, transposed(layer.w)), layer.b);
  const Values z_S = product(absolute(layer.x), transposed(absolute(layer.w)));
  Values z_bound = z;
  for (std::int64_t i = 0; i < z.rows; ++i)
    for (std::int64_t j = 0; j < z.cols; ++j)
      z_bound.at(i, j) = alarm_plus(static_cast<double>(k), z_S.at(i, j), layer.b.at(0, j), dtype);
  GuardedMatrix y(dtype, m, n);
  GuardedBytes mask(mask_bytes(m, n), 0xFF);
  kernels::LinearForward forward{.x = x.matrix(), .w = w.matrix(), .b = b.vector(), .y = y.matrix()};
  kernels::linear_forward(execution(), forward);
  EXPECT_TRUE(near(y.values(), z, z_bound, dtype)) << "forward";
  forward.activation = Activation::relu;
  forward.mask = mask.data();
  kernels::linear_forward(execution(), forward);
  EXPECT_TRUE(near(y.values(), z.map(relu), z_bound, dtype)) << "forward, relu";
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      if (std::fabs(z.at(i, j)) > z_bound.at(i, j)) {
        ASSERT_EQ(mask_bit(mask.data(), n, i, j), z.at(i, j) >= 0) << i << ", " << j;
      }
    }

  const Values dx_ref = selected(product(layer.dz, layer.w), layer.mask);
  const Values dx_bound = bound(product(absolute(layer.dz), absolute(layer.w)), static_cast<double>(n));
  GuardedMatrix dx(dtype, m, k), dx_bias(wide, 1, k);
  kernels::linear_input_gradient(execution(), {.dz = dz.matrix(),
                                               .w = w.matrix(),
                                               .dx = dx.matrix(),
                                               .activation = Activation::relu,
                                               .mask = layer.mask.data(),
                                               .bias = dx_bias.vector()});
  EXPECT_TRUE(near(dx.values(), dx_ref, dx_bound, dtype)) << "dx";
  const Values dx_S = column_sums(absolute(dx_ref));
  const Values sums_bound = dx_S.zip(column_sums(dx_bound), [&](double S, double t) {
    return column_sum(static_cast<double>(m), S + t, t, dtype, wide);
  });
  EXPECT_TRUE(near(dx_bias.values(), column_sums(dx_ref), sums_bound, wide)) << "bias gradient in dx";

  GuardedMatrix dw(wide, n, k), dw_bias(wide, 1, n);
  kernels::linear_weight_gradient(execution(),
                                  {.dz = dz.matrix(), .x = x.matrix(), .dw = dw.matrix(), .bias = dw_bias.vector()});
  const Values dw_S = product(transposed(absolute(layer.dz)), absolute(layer.x));
  EXPECT_TRUE(near(dw.values(), product(transposed(layer.dz), layer.x), bound(dw_S, static_cast<double>(m)), wide))
      << "dw";
  const Values bias_bound = bound(column_sums(absolute(layer.dz)), static_cast<double>(m));
  EXPECT_TRUE(near(dw_bias.values(), column_sums(layer.dz), bias_bound, wide)) << "bias gradient in dw";
}

TEST_P(LinearKernelsTest, RandomFillsStayWithinTheAlarmBound) {
  const std::vector<GemmShape> shapes = gemm_shapes(kSeed, std::int64_t{1} << 20);
  for (std::size_t i = 0; i < shapes.size(); ++i)
    for (const Dtype dtype : kDtypes) {
      SCOPED_TRACE(to_string(shapes[i]) + " " + std::string(name_of(dtype)));
      const auto fill = [&](std::int64_t rows, std::int64_t cols, std::uint64_t seed, int) {
        return normal(rows, cols, seed, dtype);
      };
      expect_within_bounds(make_layer(shapes[i], kSeed + 10 * i, fill), dtype);
    }
}

TEST_P(LinearKernelsTest, AdversarialFillsStayWithinTheAlarmBound) {
  const std::vector<GemmShape> shapes = gemm_shapes(kSeed + 1, std::int64_t{1} << 17);
  for (std::size_t i = 0; i < shapes.size(); ++i)
    for (const Dtype dtype : kDtypes)
      for (const Adversary kind : kAdversaries) {
        SCOPED_TRACE(to_string(shapes[i]) + " " + std::string(name_of(dtype)) + " " + std::string(name_of(kind)));
        const auto fill = [&](std::int64_t rows, std::int64_t cols, std::uint64_t seed, int) {
          return adversarial(rows, cols, seed, dtype, kind);
        };
        expect_within_bounds(make_layer(shapes[i], kSeed + 10 * i, fill), dtype);
      }
}

TEST_P(LinearKernelsTest, GeluStaysWithinItsBound) {
  for (const GemmShape& shape : {GemmShape{5, 7, 3}, {64, 64, 64}, {33, 129, 300}, {128, 256, 50}})
    for (const Dtype dtype : kDtypes)
      for (const Activation activation : {Activation::gelu_tanh, Activation::gelu_erf}) {
        SCOPED_TRACE(to_string(shape) + " " + std::string(name_of(dtype)) + " " + std::string(name_of(activation)));
        const auto [m, n, k] = shape;
        const Values x = normal(m, k, kSeed, dtype), w = normal(n, k, kSeed + 1, dtype),
                     b = normal(1, n, kSeed + 2, dtype);
        const Values z = plus_row(product(x, transposed(w)), b);
        const Values S = product(absolute(x), transposed(absolute(w)));
        const bool erf = activation == Activation::gelu_erf;
        const Values value = z.map([&](double v) {
          return erf ? 0.5 * v * std::erfc(-v * std::sqrt(0.5))
                     : v / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
        });
        Values z_bound = z, y_bound = z;
        for (std::int64_t i = 0; i < m; ++i)
          for (std::int64_t j = 0; j < n; ++j) {
            z_bound.at(i, j) = alarm_plus(static_cast<double>(k), S.at(i, j), b.at(0, j), dtype);
            y_bound.at(i, j) = gelu(z.at(i, j), value.at(i, j), z_bound.at(i, j), dtype);
          }
        const GuardedMatrix gx(dtype, x), gw(dtype, w), gb(dtype, b);
        GuardedMatrix y(dtype, m, n, {.padding = 1}), saved(dtype, m, n, {.padding = 2, .offset = 1});
        kernels::linear_forward(execution(), {.x = gx.matrix(),
                                              .w = gw.matrix(),
                                              .b = gb.vector(),
                                              .y = y.matrix(),
                                              .activation = activation,
                                              .pre_activation = saved.matrix()});
        EXPECT_TRUE(near(y.values(), value, y_bound, dtype));
        EXPECT_TRUE(near(saved.values(), z, z_bound, dtype));
        EXPECT_TRUE(y.intact() && saved.intact());
      }
}

TEST_P(LinearKernelsTest, InputGradientAppliesGelu) {
  const GemmShape shape{65, 33, 140};
  const auto [m, n, k] = shape;
  for (const Dtype dtype : kDtypes) {
    SCOPED_TRACE(name_of(dtype));
    const Dtype wide = accumulation_dtype(dtype);
    const Values dz = normal(m, n, kSeed, dtype), w = normal(n, k, kSeed + 1, dtype),
                 z = normal(m, k, kSeed + 2, dtype);
    const Values slope = z.map([](double v) {
      return 0.5 * std::erfc(-v * std::sqrt(0.5)) + v * std::exp(-0.5 * v * v) / std::sqrt(2 * M_PI);
    });
    const Values g = product(dz, w);
    const Values S = product(absolute(dz), absolute(w));
    const Values ref = g.zip(slope, [](double a, double b) { return a * b; });
    Values bound = g;
    for (std::size_t i = 0; i < g.elements.size(); ++i)
      bound.elements[i] =
          gelu_gradient(g.elements[i], slope.elements[i], alarm(n, S.elements[i], dtype), dtype, dtype, true);
    const GuardedMatrix gdz(dtype, dz), gw(dtype, w), gz(dtype, z, {.padding = 3, .offset = 1});
    GuardedMatrix dx(dtype, m, k), bias(wide, 1, k);
    kernels::linear_input_gradient(execution(), {.dz = gdz.matrix(),
                                                 .w = gw.matrix(),
                                                 .dx = dx.matrix(),
                                                 .activation = Activation::gelu_erf,
                                                 .pre_activation = gz.matrix(),
                                                 .bias = bias.vector()});
    EXPECT_TRUE(near(dx.values(), ref, bound, dtype));
    const Values t = column_sums(absolute(ref)).zip(column_sums(bound), [&](double total, double error) {
      return column_sum(m, total + error, error, dtype, wide);
    });
    EXPECT_TRUE(near(bias.values(), column_sums(ref), t, wide));
  }
}

/// Every output of a layer's three kernels, bit for bit.
std::vector<std::byte> all_bits(const Layer& layer, Dtype dtype, int threads) {
  detail::ThreadPool pool(threads);
  const CpuExecution with_threads{pool, LinearKernelsTest::GetParam()};
  const auto [m, n, k] = layer.shape;
  const GuardedMatrix x(dtype, layer.x), w(dtype, layer.w), b(dtype, layer.b), dz(dtype, layer.dz);
  GuardedMatrix y(dtype, m, n), dx(dtype, m, k), dx_bias(Dtype::f32, 1, k), dw(Dtype::f32, n, k), db(Dtype::f32, 1, n),
      column(Dtype::f32, 1, n);
  GuardedBytes mask(mask_bytes(m, n), 0);
  kernels::linear_forward(with_threads, {.x = x.matrix(),
                                         .w = w.matrix(),
                                         .b = b.vector(),
                                         .y = y.matrix(),
                                         .activation = Activation::relu,
                                         .mask = mask.data()});
  kernels::linear_input_gradient(with_threads, {.dz = dz.matrix(),
                                                .w = w.matrix(),
                                                .dx = dx.matrix(),
                                                .activation = Activation::relu,
                                                .mask = layer.mask.data(),
                                                .bias = dx_bias.vector()});
  kernels::linear_weight_gradient(with_threads,
                                  {.dz = dz.matrix(), .x = x.matrix(), .dw = dw.matrix(), .bias = db.vector()});
  kernels::column_sum(with_threads, {.dz = dz.matrix(), .bias = column.vector()});
  std::vector<std::byte> bits;
  for (const GuardedMatrix* matrix : {&y, &dx, &dx_bias, &dw, &db, &column}) {
    const std::vector<std::byte> own = matrix->bytes();
    bits.insert(bits.end(), own.begin(), own.end());
  }
  for (const std::uint8_t byte : mask.copy()) bits.push_back(std::byte{byte});
  return bits;
}

TEST_P(LinearKernelsTest, ResultsDoNotDependOnTheNumberOfThreads) {
  for (const GemmShape& shape : {GemmShape{300, 70, 700},
                                 {16384, 64, 64},
                                 {4099, 10, 33},
                                 {64, 520, 520},
                                 {1, 700, 300},
                                 {1500, 300, 5},
                                 {2100, 530, 560}})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      SCOPED_TRACE(to_string(shape) + " " + std::string(name_of(dtype)));
      const auto fill = [&](std::int64_t rows, std::int64_t cols, std::uint64_t seed, int) {
        return normal(rows, cols, seed, dtype);
      };
      const Layer layer = make_layer(shape, kSeed, fill);
      const std::vector<std::byte> one = all_bits(layer, dtype, 1);
      for (const int threads : {2, 3, 4, 8}) EXPECT_EQ(one, all_bits(layer, dtype, threads)) << threads << " threads";
    }
}

TEST_P(LinearKernelsTest, ARowDoesNotDependOnTheRestOfTheBatch) {
  if (GetParam() == ProductLibrary::onednn) GTEST_SKIP() << "oneDNN orders its sums by the size";
  const std::int64_t n = 150, k = 600;
  const Values x = normal(333, k, kSeed, Dtype::f32), w = normal(n, k, kSeed + 1, Dtype::f32);
  const GuardedMatrix gx(Dtype::f32, x), gw(Dtype::f32, w);
  GuardedMatrix whole(Dtype::f32, x.rows, n);
  kernels::linear_forward(execution(), {.x = gx.matrix(), .w = gw.matrix(), .y = whole.matrix()});
  const Values expected = whole.values();
  for (const std::int64_t begin : {0, 1, 11, 95, 96, 200, 332})
    for (const std::int64_t rows : {1, 2, 5, 13}) {
      if (begin + rows > x.rows) continue;
      ConstMatrix part = gx.matrix();
      part.data = static_cast<const float*>(part.data) + begin * part.ld;
      part.rows = rows;
      GuardedMatrix y(Dtype::f32, rows, n);
      kernels::linear_forward(execution(), {.x = part, .w = gw.matrix(), .y = y.matrix()});
      const Values got = y.values();
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < n; ++j) ASSERT_EQ(got.at(i, j), expected.at(begin + i, j)) << begin << "+" << i;
    }
}

// ---- masks

constexpr std::int64_t kMaskFeatures[] = {1, 2, 7, 8, 9, 31, 32, 33, 64, 127, 128, 129, 130, 255, 256, 257, 1000, 4096};
constexpr std::int64_t kMaskBatches[] = {1, 2, 3, 17, 128};

TEST_P(LinearMaskTest, MatchesTheReferenceWhateverTheBufferHeld) {
  for (const std::int64_t features : kMaskFeatures)
    for (const std::int64_t batch : kMaskBatches)
      for (const Dtype dtype : kDtypes) {
        SCOPED_TRACE(std::to_string(features) + " x " + std::to_string(batch) + " " + std::string(name_of(dtype)));
        const Values x = integers(batch, 3, kSeed, 2), w = integers(features, 3, kSeed + 1, 1);
        const Values z = product(x, transposed(w));
        const GuardedMatrix gx(dtype, x), gw(dtype, w);
        GuardedMatrix y(dtype, batch, features);
        for (const std::uint8_t poison : {0x00, 0xFF, 0xA5}) {
          GuardedBytes mask(mask_bytes(batch, features), poison);
          kernels::linear_forward(execution(), {.x = gx.matrix(),
                                                .w = gw.matrix(),
                                                .y = y.matrix(),
                                                .activation = Activation::relu,
                                                .mask = mask.data()});
          ASSERT_TRUE(is_mask_of(mask.data(), z));
          ASSERT_TRUE(mask.intact());
        }
      }
}

TEST_P(LinearMaskTest, BackwardReadsValidBitsOnly) {
  for (const std::int64_t features : kMaskFeatures)
    for (const std::int64_t batch : {1, 3, 17}) {
      SCOPED_TRACE(std::to_string(features) + " x " + std::to_string(batch));
      // One term a sum: the case that some fused products refuse.
      const Values dz = integers(batch, 1, kSeed, 2).map([](double v) { return v == 0 ? 3 : v; });
      const Values w = integers(1, features, kSeed + 1, 1).map([](double v) { return v == 0 ? 2 : v; });
      const Values plain = product(dz, w);
      std::vector<std::uint8_t> mask = mask_of(integers(batch, features, kSeed + 2, 2));
      const GuardedMatrix gdz(Dtype::f32, dz), gw(Dtype::f32, w);
      GuardedMatrix dx(Dtype::f32, batch, features), bias(Dtype::f32, 1, features);
      const kernels::LinearInputGradient args{.dz = gdz.matrix(),
                                              .w = gw.matrix(),
                                              .dx = dx.matrix(),
                                              .activation = Activation::relu,
                                              .mask = mask.data(),
                                              .bias = bias.vector()};
      const auto expect_selected = [&] {
        dx.poison();
        kernels::linear_input_gradient(execution(), args);
        ASSERT_TRUE(equal(dx.values(), selected(plain, mask), Dtype::f32));
        ASSERT_TRUE(equal(bias.values(), column_sums(selected(plain, mask)), Dtype::f32));
      };
      expect_selected();
      flip_padding(mask.data(), batch, features);
      expect_selected();
      // A valid bit changes its element and its column's sum, and nothing else.
      flip_mask_bit(mask.data(), features, batch - 1, features / 2);
      expect_selected();
    }
}

TEST_P(LinearMaskTest, SelectsInsteadOfMultiplying) {
  const Values dz(2, 1, {kInf, kNan});
  const Values w(1, 9, {1, 1, 1, 1, 1, 1, 1, 1, 1});
  std::vector<std::uint8_t> mask = mask_of(Values(2, 9,
                                                  {-1, 1, -1, -1, -1, -1, -1, -1, -1,  //
                                                   -1, -1, -1, -1, -1, -1, -1, -1, 1}));
  for (const Dtype dtype : kDtypes) {
    const GuardedMatrix gdz(dtype, dz), gw(dtype, w);
    GuardedMatrix dx(dtype, 2, 9);
    kernels::linear_input_gradient(
        execution(),
        {.dz = gdz.matrix(), .w = gw.matrix(), .dx = dx.matrix(), .activation = Activation::relu, .mask = mask.data()});
    EXPECT_TRUE(equal(dx.values(), Values(2, 9, {0, kInf, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, kNan}), dtype));
  }
}

// ---- closed forms

TEST_P(LinearKernelsTest, A02_SpecialValuesThroughReluAndItsMask) {
  const double subnormal = 0x1p-149;
  const Values z(9, 1, {0.0, -0.0, subnormal, -subnormal, kInf, -kInf, kNan, 1, -1});
  const GuardedMatrix x(Dtype::f32, z), w(Dtype::f32, Values(1, 1, {1}));
  GuardedMatrix y(Dtype::f32, 9, 1);
  GuardedBytes mask(mask_bytes(9, 1), 0xA5);
  kernels::linear_forward(
      execution(),
      {.x = x.matrix(), .w = w.matrix(), .y = y.matrix(), .activation = Activation::relu, .mask = mask.data()});
  EXPECT_TRUE(equal(y.values(), Values(9, 1, {0, 0, subnormal, 0, kInf, 0, kNan, 1, 0}), Dtype::f32));
  const bool open[] = {true, true, true, false, true, false, false, true, false};
  for (int i = 0; i < 9; ++i) {
    if (i == 6) continue;  // NaN: not specified
    EXPECT_EQ(mask_bit(mask.data(), 1, i, 0), open[i]) << i;
  }
}

TEST_P(LinearKernelsTest, A10_DegenerateSizes) {
  for (const Dtype dtype : kDtypes) {
    SCOPED_TRACE(name_of(dtype));
    const Dtype wide = accumulation_dtype(dtype);
    // batch 0: the gradients are zeros, written.
    const GuardedMatrix no_x(dtype, 0, 3), no_dz(dtype, 0, 3), w(dtype, integers(3, 3, 1, 2));
    GuardedMatrix no_y(dtype, 0, 3), no_dx(dtype, 0, 3), dw(wide, 3, 3), db(wide, 1, 3), dx_bias(wide, 1, 3);
    kernels::linear_forward(execution(), {.x = no_x.matrix(), .w = w.matrix(), .y = no_y.matrix()});
    kernels::linear_weight_gradient(execution(),
                                    {.dz = no_dz.matrix(), .x = no_x.matrix(), .dw = dw.matrix(), .bias = db.vector()});
    kernels::linear_input_gradient(
        execution(), {.dz = no_dz.matrix(), .w = w.matrix(), .dx = no_dx.matrix(), .bias = dx_bias.vector()});
    EXPECT_TRUE(equal(dw.values(), Values(3, 3), wide));
    EXPECT_TRUE(equal(db.values(), Values(1, 3), wide));
    EXPECT_TRUE(equal(dx_bias.values(), Values(1, 3), wide));
    EXPECT_TRUE(no_y.intact() && no_dx.intact());

    // in = 0: y is the bias, and db has no product to ride on.
    const GuardedMatrix empty_x(dtype, 4, 0), empty_w(dtype, 2, 0), b(dtype, Values(1, 2, {3, -5}));
    const GuardedMatrix dz(dtype, Values(4, 2, {1, 2, 3, 4, 5, 6, 7, 8}));
    GuardedMatrix y(dtype, 4, 2), empty_dw(wide, 2, 0), db_of_empty(wide, 1, 2);
    kernels::linear_forward(execution(),
                            {.x = empty_x.matrix(), .w = empty_w.matrix(), .b = b.vector(), .y = y.matrix()});
    EXPECT_TRUE(equal(y.values(), Values(4, 2, {3, -5, 3, -5, 3, -5, 3, -5}), dtype));
    kernels::linear_weight_gradient(
        execution(), {.dz = dz.matrix(), .x = empty_x.matrix(), .dw = empty_dw.matrix(), .bias = db_of_empty.vector()});
    EXPECT_TRUE(equal(db_of_empty.values(), Values(1, 2, {16, 20}), wide));

    // out = 0: dx is what was contributed before, or 0.
    const GuardedMatrix narrow_dz(dtype, 2, 0), narrow_w(dtype, 0, 3);
    GuardedMatrix dx(dtype, 2, 3);
    kernels::linear_input_gradient(execution(), {.dz = narrow_dz.matrix(), .w = narrow_w.matrix(), .dx = dx.matrix()});
    EXPECT_TRUE(equal(dx.values(), Values(2, 3), dtype));

    // 1 x 1 x 1.
    const GuardedMatrix one_x(dtype, Values(1, 1, {2})), one_w(dtype, Values(1, 1, {-3})),
        one_b(dtype, Values(1, 1, {6.5}));
    GuardedMatrix one_y(dtype, 1, 1);
    kernels::linear_forward(execution(), {.x = one_x.matrix(),
                                          .w = one_w.matrix(),
                                          .b = one_b.vector(),
                                          .y = one_y.matrix(),
                                          .activation = Activation::relu});
    EXPECT_EQ(one_y.values().at(0, 0), 0.5);
  }
}

TEST_P(LinearKernelsTest, A12_MaskBytes) {
  Values w(130, 2);
  for (std::int64_t i = 0; i < 130; ++i)
    for (std::int64_t j = 0; j < 2; ++j) w.at(i, j) = (7 * i + 3 * j) % 5 < 2 ? 1 : -1;
  const GuardedMatrix x(Dtype::f32, Values(2, 2, {1, 0, 0, 1})), gw(Dtype::f32, w);
  GuardedMatrix y(Dtype::f32, 2, 130);
  GuardedBytes mask(mask_bytes(2, 130), 0xA5);
  ASSERT_EQ(mask.size(), 64);
  kernels::linear_forward(
      execution(),
      {.x = x.matrix(), .w = gw.matrix(), .y = y.matrix(), .activation = Activation::relu, .mask = mask.data()});
  const std::array<std::uint8_t, 17> column_0{0x29, 0xa5, 0x94, 0x52, 0x4a, 0x29, 0xa5, 0x94, 0x52,
                                              0x4a, 0x29, 0xa5, 0x94, 0x52, 0x4a, 0x29, 0x01};
  const std::array<std::uint8_t, 17> column_1{0x52, 0x4a, 0x29, 0xa5, 0x94, 0x52, 0x4a, 0x29, 0xa5,
                                              0x94, 0x52, 0x4a, 0x29, 0xa5, 0x94, 0x52, 0x02};
  for (std::size_t byte = 0; byte < 32; ++byte) {
    EXPECT_EQ(mask.data()[byte], byte < 17 ? column_0[byte] : 0) << byte;
    EXPECT_EQ(mask.data()[32 + byte], byte < 17 ? column_1[byte] : 0) << byte;
  }
}

TEST_P(LinearKernelsTest, B01_IntegerProductOfThousandTerms) {
  Values x(3, 1000), w(3, 1000);
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t k = 0; k < 1000; ++k) {
      x.at(i, k) = static_cast<double>((3 * i + 7 * k + k / 7) % 5) - 2;
      w.at(i, k) = static_cast<double>((5 * k + 11 * i + k / 3) % 4) - 1;
    }
  const Values expected(3, 3, {4, -98, -196, -4, -43, -90, 3, -8, 1});
  for (const Dtype dtype : kDtypes) {
    const GuardedMatrix gx(dtype, x), gw(dtype, w);
    GuardedMatrix y(dtype, 3, 3);
    kernels::linear_forward(execution(), {.x = gx.matrix(), .w = gw.matrix(), .y = y.matrix()});
    EXPECT_TRUE(equal(y.values(), expected, dtype)) << name_of(dtype);
  }
}

TEST_P(LinearKernelsTest, B03_SumsAreAsWideAsPromised) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    const Values ones = Values(4096, 1).map([](double) { return 1; });
    const GuardedMatrix column(dtype, ones), row(dtype, transposed(ones));
    GuardedMatrix d(Dtype::f32, 1, 1), dw(Dtype::f32, 1, 1), db(Dtype::f32, 1, 1);
    kernels::product(execution(), {.a = row.matrix(), .b = column.matrix(), .d = d.matrix()});
    kernels::linear_weight_gradient(
        execution(), {.dz = column.matrix(), .x = column.matrix(), .dw = dw.matrix(), .bias = db.vector()});
    for (const GuardedMatrix* sum : {&d, &dw, &db}) EXPECT_EQ(sum->values().at(0, 0), 4096) << name_of(dtype);
  }
  for (const std::int64_t k : {std::int64_t{1} << 24, (std::int64_t{1} << 24) + 1}) {
    const std::vector<float> ones(static_cast<std::size_t>(k), 1.0f);
    float sum = 0;
    kernels::linear_forward(execution(), {.x = {ones.data(), 1, k, k, Dtype::f32},
                                          .w = {ones.data(), 1, k, k, Dtype::f32},
                                          .y = {&sum, 1, 1, 1, Dtype::f32}});
    EXPECT_EQ(sum, 16777216.0f);
  }
}

TEST_P(LinearKernelsTest, B04_CancellationIsJudgedByTheSumOfMagnitudes) {
  const GuardedMatrix x(Dtype::f32, Values(1, 3, {0x1p24, 1, -0x1p24})), w(Dtype::f32, Values(1, 3, {1, 1, 1}));
  GuardedMatrix y(Dtype::f32, 1, 1);
  kernels::linear_forward(execution(), {.x = x.matrix(), .w = w.matrix(), .y = y.matrix()});
  const double got = y.values().at(0, 0);
  EXPECT_TRUE(got == 0 || got == 1) << got;
  EXPECT_TRUE(within(got, 1, hard(3, 0x1p25 + 1, Dtype::f32), Dtype::f32));
}

TEST_P(LinearKernelsTest, B05_OperandsOfF32AreNotRounded) {
  const GuardedMatrix w(Dtype::f32, Values(1, 1, {1}));
  for (const double value : {1 + 0x1p-11, 1 + 0x1p-11 + 0x1p-20}) {
    const GuardedMatrix x(Dtype::f32, Values(1, 1, {value}));
    GuardedMatrix y(Dtype::f32, 1, 1), dx(Dtype::f32, 1, 1), dw(Dtype::f32, 1, 1);
    kernels::linear_forward(execution(), {.x = x.matrix(), .w = w.matrix(), .y = y.matrix()});
    kernels::linear_input_gradient(execution(), {.dz = x.matrix(), .w = w.matrix(), .dx = dx.matrix()});
    kernels::linear_weight_gradient(execution(), {.dz = x.matrix(), .x = w.matrix(), .dw = dw.matrix()});
    for (const GuardedMatrix* product : {&y, &dx, &dw}) EXPECT_EQ(product->values().at(0, 0), value);
  }
  // bf16 rounds operands when they are stored, ties to even.
  EXPECT_EQ(static_cast<float>(bf16(1.00390625f)), 1);
  EXPECT_EQ(static_cast<float>(bf16(1.01171875f)), 1.015625f);
}

TEST_P(LinearKernelsTest, BiasGradientOf1600OnesIs1600InBf16) {
  const GuardedMatrix ones(Dtype::bf16, Values(1600, 1).map([](double) { return 1; }));
  GuardedMatrix db(Dtype::bf16, 1, 1), dw(Dtype::bf16, 1, 1), fused(Dtype::bf16, 1, 1);
  kernels::column_sum(execution(), {.dz = ones.matrix(), .bias = db.vector()});
  kernels::linear_weight_gradient(execution(),
                                  {.dz = ones.matrix(), .x = ones.matrix(), .dw = dw.matrix(), .bias = fused.vector()});
  EXPECT_EQ(db.values().at(0, 0), 1600);
  EXPECT_EQ(fused.values().at(0, 0), 1600);
  EXPECT_EQ(dw.values().at(0, 0), 1600);
}

TEST_P(LinearKernelsTest, D10_FusedRoundsOnceAndIsCloserToTheTruth) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    const Values x = normal(64, 96, kSeed, dtype), w = normal(80, 96, kSeed + 1, dtype),
                 b = normal(1, 80, kSeed + 2, dtype);
    const Values truth = plus_row(product(x, transposed(w)), b);
    const Values twice = on_grid(plus_row(on_grid(product(x, transposed(w)), dtype), b), dtype);
    const GuardedMatrix gx(dtype, x), gw(dtype, w), gb(dtype, b);
    GuardedMatrix y(dtype, 64, 80);
    kernels::linear_forward(execution(), {.x = gx.matrix(), .w = gw.matrix(), .b = gb.vector(), .y = y.matrix()});
    const auto error = [&](const Values& got) {
      double total = 0;
      for (std::size_t i = 0; i < truth.elements.size(); ++i) total += std::fabs(got.elements[i] - truth.elements[i]);
      return total;
    };
    EXPECT_LT(error(y.values()), 0.95 * error(twice)) << name_of(dtype);
  }
}

TEST_P(LinearKernelsTest, MillionsOfRowsSumExactly) {
  const std::int64_t rows = (std::int64_t{1} << 22) + 1;
  const std::vector<bf16> ones(static_cast<std::size_t>(rows), bf16(1.0f));
  const ConstMatrix column{ones.data(), rows, 1, 1, Dtype::bf16};
  float dw = 0, db = 0;
  kernels::linear_weight_gradient(
      execution(), {.dz = column, .x = column, .dw = {&dw, 1, 1, 1, Dtype::f32}, .bias = {&db, 1, Dtype::f32}});
  EXPECT_EQ(dw, static_cast<float>(rows));
  EXPECT_EQ(db, static_cast<float>(rows));
}

}  // namespace
}  // namespace fusegrad::test
