// The GPU's activation and column-sum kernels against the CPU's: bit for bit where the arithmetic is exact, within the
// bounds of tolerance.h of the fp64 truth elsewhere.
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/both_devices.h"
#include "tests/support/device.h"
#include "tests/support/dtypes.h"
#include "tests/support/fills.h"
#include "tests/support/masks.h"
#include "tests/support/matching.h"
#include "tests/support/tolerance.h"

#include <fusegrad/ops/activation_functions.h>
#include <fusegrad/ops/activation_kernels.h>
#include <fusegrad/ops/linear_kernels.h>

namespace fusegrad::test {
namespace {

using Handle = BothDevices::Handle;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Size {
  std::int64_t rows;
  std::int64_t cols;
};

// Edges of packets, mask words, strips of columns and groups of rows; the last seven take several rounds or several
// blocks a column.
constexpr Size kSizes[] = {{0, 5},     {5, 0},     {1, 1},      {2, 3},      {1, 8},    {7, 8},    {3, 16},
                           {5, 31},    {4, 32},    {6, 33},     {9, 64},     {3, 127},  {2, 128},  {3, 129},
                           {17, 130},  {5, 257},   {33, 1000},  {130, 96},   {300, 40}, {1, 4096}, {2000, 1},
                           {1100, 72}, {5000, 64}, {700, 1024}, {2048, 136}, {2049, 24}};

// Packed, rows of whole packets with a gap, and rows that no packet fits.
constexpr Layout kLayouts[] = {{}, {.padding = 16}, {.padding = 3, .offset = 1}};

std::string describe(const Size& size, const Layout& layout) {
  return std::to_string(size.rows) + " x " + std::to_string(size.cols) + ", padding " + std::to_string(layout.padding) +
         ", offset " + std::to_string(layout.offset);
}

std::vector<std::uint8_t> random_mask(const Size& size, std::uint64_t seed) {
  std::vector<std::uint8_t> mask = mask_of(integers(size.rows, size.cols, seed, 3));
  flip_padding(mask.data(), size.rows, size.cols);
  return mask;
}

class ActivationCudaKernelsTest : public EachDtype {
 protected:
  void SetUp() override { skip_without(DeviceType::cuda); }
};
FUSEGRAD_EACH_DTYPE(ActivationCudaKernelsTest);

using ColumnSumCudaKernelsTest = ActivationCudaKernelsTest;
FUSEGRAD_EACH_DTYPE(ColumnSumCudaKernelsTest);

TEST_P(ActivationCudaKernelsTest, ForwardIsTheCpusBitForBit) {
  for (const Size& size : kSizes) {
    for (const Layout& layout : kLayouts) {
      for (const Dtype z_dtype : {dtype(), wide()}) {
        for (const std::uint8_t poison : {0x00, 0xFF, 0xA5}) {
          SCOPED_TRACE(describe(size, layout));
          BothDevices both;
          const Handle z = both.matrix(z_dtype, integers(size.rows, size.cols, 1, 2), layout);
          const Handle b = both.matrix(dtype(), integers(1, size.cols, 2, 1), layout);
          const Handle y = both.matrix(dtype(), size.rows, size.cols, layout);
          const Handle plain = both.matrix(dtype(), size.rows, size.cols, layout);
          const Handle unsaved = both.matrix(dtype(), size.rows, size.cols, layout);
          const Handle mask = both.bytes(mask_bytes(size.rows, size.cols), poison);
          both.run([&](const auto& execution, const auto& at) {
            kernels::ActivationForward args{.z = at.matrix(z),
                                            .b = at.vector(b),
                                            .y = at.matrix(y),
                                            .activation = Activation::relu,
                                            .mask = at.bytes(mask)};
            kernels::activation_forward(execution, args);
            args.mask = nullptr;
            args.b = {};
            args.y = at.matrix(unsaved);
            kernels::activation_forward(execution, args);
            args.activation = Activation::none;
            args.b = at.vector(b);
            args.y = at.matrix(plain);
            kernels::activation_forward(execution, args);
          });
          EXPECT_TRUE(both.same(y));
          EXPECT_TRUE(both.same_bytes(mask));
          EXPECT_TRUE(both.same(unsaved));
          EXPECT_TRUE(both.same(plain));
        }
      }
    }
  }
}

TEST_P(ActivationCudaKernelsTest, ReluInPlaceKeepsNanAndOpensAtBothZeros) {
  const Values values(2, 9, {kNan, -kInf, kInf, 0, -0.0, 1, -1, 2, -2, -0.0, kNan, 0, -3, 3, -kInf, kInf, -1, 1});
  BothDevices both;
  const Handle y = both.matrix(dtype(), values);
  const Handle mask = both.bytes(mask_bytes(2, 9), 0xA5);
  both.run([&](const auto& execution, const auto& at) {
    kernels::activation_forward(
        execution, {.z = at.matrix(y), .y = at.matrix(y), .activation = Activation::relu, .mask = at.bytes(mask)});
  });
  EXPECT_TRUE(both.same(y));
  EXPECT_TRUE(is_mask_of(both.gpu_bytes(mask).data(), values));
}

TEST_P(ActivationCudaKernelsTest, ReplayedBranchesReplaceTheSigns) {
  for (const Size& size : {Size{3, 40}, Size{5, 33}, Size{9, 128}}) {
    BothDevices both;
    const Handle z = both.matrix(dtype(), integers(size.rows, size.cols, 3, 5));
    const Handle y = both.matrix(dtype(), size.rows, size.cols);
    const Handle branches = both.bytes(random_mask(size, 4));
    both.run([&](const auto& execution, const auto& at) {
      kernels::activation_forward(
          execution,
          {.z = at.matrix(z), .y = at.matrix(y), .activation = Activation::relu, .branches = at.bytes(branches)});
    });
    EXPECT_TRUE(both.same(y));
  }
}

double gelu_value(Activation activation, double z) {
  return activation == Activation::gelu_tanh ? detail::GeluTanh::value(z) : detail::GeluErf::value(z);
}

double gelu_slope(Activation activation, double z) {
  return activation == Activation::gelu_tanh ? detail::GeluTanh::slope(z) : detail::GeluErf::slope(z);
}

TEST_P(ActivationCudaKernelsTest, GeluIsWithinItsBound) {
  for (const Activation activation : {Activation::gelu_tanh, Activation::gelu_erf}) {
    for (const Dtype z_dtype : {dtype(), wide()}) {
      for (const Layout& layout : kLayouts) {
        SCOPED_TRACE(describe({37, 520}, layout));
        const Values z_values = normal(37, 520, 5, dtype()).map([](double z) { return 2 * z; });
        const Values b_values = normal(1, 520, 6, dtype());
        BothDevices both;
        const Handle z = both.matrix(z_dtype, z_values, layout);
        const Handle b = both.matrix(dtype(), b_values);
        const Handle y = both.matrix(dtype(), 37, 520, layout);
        const Handle saved = both.matrix(dtype(), 37, 520, layout);
        both.run([&](const auto& execution, const auto& at) {
          kernels::activation_forward(execution, {.z = at.matrix(z),
                                                  .b = at.vector(b),
                                                  .y = at.matrix(y),
                                                  .activation = activation,
                                                  .pre_activation = at.matrix(saved)});
        });
        const Values truth = plus_row(z_values, b_values);
        const Values tolerance = truth.map([&](double v) {
          return gelu(v, gelu_value(activation, v), accumulation_roundoff(dtype()) * std::fabs(v), dtype());
        });
        const Values want = truth.map([&](double v) { return gelu_value(activation, v); });
        EXPECT_TRUE(near(both.gpu(y).values(), want, tolerance, dtype()));
        EXPECT_TRUE(both.gpu(y).intact());
        EXPECT_TRUE(both.same(saved)) << "one addition and one rounding";
      }
    }
  }
}

TEST_P(ActivationCudaKernelsTest, GeluHasItsLimits) {
  const Values z_values(1, 8, {kNan, kInf, -kInf, 0, -0.0, 60000, -60000, 12});
  for (const Activation activation : {Activation::gelu_tanh, Activation::gelu_erf}) {
    BothDevices both;
    const Handle z = both.matrix(dtype(), z_values);
    const Handle y = both.matrix(dtype(), 1, 8);
    const Handle dy = both.matrix(dtype(), Values(1, 8, {1, 1, 1, 1, 1, 1, 1, 1}));
    const Handle dz = both.matrix(dtype(), 1, 8);
    both.run([&](const auto& execution, const auto& at) {
      kernels::activation_forward(execution, {.z = at.matrix(z), .y = at.matrix(y), .activation = activation});
      kernels::activation_backward(
          execution,
          {.dy = at.matrix(dy), .dz = at.matrix(dz), .activation = activation, .pre_activation = at.matrix(z)});
    });
    EXPECT_TRUE(both.same(y));
    EXPECT_TRUE(both.same(dz));
    EXPECT_TRUE(equal(both.gpu(y).values(), Values(1, 8, {kNan, kInf, 0, 0, 0, 60000, 0, 12}), dtype()));
    EXPECT_TRUE(equal(both.gpu(dz).values(), Values(1, 8, {kNan, 1, 0, 0.5, 0.5, 1, 0, 1}), dtype()));
  }
}

// Where the former contribution lies.
enum class From : std::uint8_t { nowhere, destination, elsewhere };

TEST_P(ActivationCudaKernelsTest, BackwardIsTheCpusBitForBit) {
  for (const Size& size : kSizes) {
    for (const Layout& layout : kLayouts) {
      for (const Activation activation : {Activation::relu, Activation::none}) {
        for (const auto& [c_from, bias_c_from] :
             {std::pair{From::nowhere, From::destination}, std::pair{From::destination, From::elsewhere},
              std::pair{From::elsewhere, From::nowhere}}) {
          SCOPED_TRACE(describe(size, layout));
          BothDevices both;
          const Handle dy = both.matrix(dtype(), integers(size.rows, size.cols, 7, 8), layout);
          const Handle dz = c_from == From::destination
                                ? both.matrix(dtype(), integers(size.rows, size.cols, 8, 8), layout)
                                : both.matrix(dtype(), size.rows, size.cols, layout);
          const Handle c = c_from == From::destination ? dz
                           : c_from == From::elsewhere ? both.matrix(dtype(), integers(size.rows, size.cols, 8, 8))
                                                       : Handle{};
          const Handle mask = both.bytes(random_mask(size, 9));
          const Handle bias = bias_c_from == From::destination ? both.matrix(wide(), integers(1, size.cols, 10, 8))
                                                               : both.matrix(wide(), 1, size.cols);
          const Handle bias_c = bias_c_from == From::destination ? bias
                                : bias_c_from == From::elsewhere ? both.matrix(wide(), integers(1, size.cols, 10, 8))
                                                                 : Handle{};
          both.run([&](const auto& execution, const auto& at) {
            kernels::activation_backward(execution, {.dy = at.matrix(dy),
                                                     .c = at.matrix(c),
                                                     .dz = at.matrix(dz),
                                                     .activation = activation,
                                                     .mask = at.bytes(mask),
                                                     .bias = at.vector(bias),
                                                     .bias_c = at.vector(bias_c)});
          });
          EXPECT_TRUE(both.same(dz));
          EXPECT_TRUE(both.same(bias));
        }
      }
    }
  }
}

TEST_P(ActivationCudaKernelsTest, BackwardTakesAnyMixOfDtypes) {
  for (const Dtype dy_dtype : kFloatingDtypes) {
    for (const Dtype bias_dtype : kFloatingDtypes) {
      for (const Size& size : {Size{70, 24}, Size{1500, 64}}) {
        BothDevices both;
        // Column sums of thinned integers are exact in bf16 too.
        const Values values = thinned_integers(size.rows, size.cols, 11, 2, size.cols, 100);
        const Handle dy = both.matrix(dy_dtype, values);
        const Handle dz = both.matrix(dtype(), size.rows, size.cols);
        const Handle c = both.matrix(dtype(), integers(size.rows, size.cols, 12, 4));
        const Handle mask = both.bytes(random_mask(size, 13));
        const Handle bias = both.matrix(bias_dtype, integers(1, size.cols, 14, 4));
        both.run([&](const auto& execution, const auto& at) {
          kernels::activation_backward(execution, {.dy = at.matrix(dy),
                                                   .c = at.matrix(c),
                                                   .dz = at.matrix(dz),
                                                   .activation = Activation::relu,
                                                   .mask = at.bytes(mask),
                                                   .bias = at.vector(bias),
                                                   .bias_c = at.vector(bias)});
        });
        EXPECT_TRUE(both.same(dz)) << name_of(dy_dtype);
        EXPECT_TRUE(both.same(bias)) << name_of(bias_dtype);
      }
    }
  }
}

TEST_P(ActivationCudaKernelsTest, BackwardSelectsAndDoesNotMultiply) {
  const Values dy_values(1, 8, {kInf, -kInf, kNan, 1, kInf, -kInf, kNan, 2});
  BothDevices both;
  const Handle dy = both.matrix(dtype(), dy_values);
  const Handle bias = both.matrix(wide(), 1, 8);
  std::vector<std::uint8_t> bits(16, 0);
  bits[0] = 0b11110000;
  const Handle mask = both.bytes(bits);
  both.run([&](const auto& execution, const auto& at) {
    kernels::activation_backward(execution, {.dy = at.matrix(dy),
                                             .dz = at.matrix(dy),
                                             .activation = Activation::relu,
                                             .mask = at.bytes(mask),
                                             .bias = at.vector(bias)});
  });
  const Values want(1, 8, {0, 0, 0, 0, kInf, -kInf, kNan, 2});
  EXPECT_TRUE(equal(both.gpu(dy).values(), want, dtype()));
  EXPECT_TRUE(equal(both.gpu(bias).values(), want, wide()));
}

TEST_P(ActivationCudaKernelsTest, GeluBackwardIsWithinItsBound) {
  const Size sizes[] = {{37, 520}, {2500, 96}};
  for (const Size& size : sizes) {
    for (const Activation activation : {Activation::gelu_tanh, Activation::gelu_erf}) {
      for (const Layout& layout : kLayouts) {
        for (const bool with_c : {false, true}) {
          SCOPED_TRACE(describe(size, layout));
          const Values g = normal(size.rows, size.cols, 15, dtype());
          const Values z = normal(size.rows, size.cols, 16, dtype());
          const Values c_values = with_c ? normal(size.rows, size.cols, 17, dtype()) : Values(size.rows, size.cols);
          BothDevices both;
          const Handle dz = both.matrix(dtype(), g, layout);  // dz is dy
          const Handle saved = both.matrix(dtype(), z, layout);
          const Handle c = with_c ? both.matrix(dtype(), c_values, layout) : Handle{};
          const Handle bias = both.matrix(wide(), 1, size.cols);
          both.run([&](const auto& execution, const auto& at) {
            kernels::activation_backward(execution, {.dy = at.matrix(dz),
                                                     .c = at.matrix(c),
                                                     .dz = at.matrix(dz),
                                                     .activation = activation,
                                                     .pre_activation = at.matrix(saved),
                                                     .bias = at.vector(bias)});
          });
          const Values product = g.zip(z, [&](double a, double b) { return a * gelu_slope(activation, b); });
          const Values off = g.zip(z, [&](double a, double b) {
            return gelu_gradient(a, gelu_slope(activation, b), 0, dtype(), dtype(), true);
          });
          const Values want = sum(product, c_values);
          const Values added = want.map([&](double v) { return accumulation_roundoff(dtype()) * std::fabs(v); });
          EXPECT_TRUE(near(both.gpu(dz).values(), want, sum(off, added), dtype()));
          EXPECT_TRUE(both.gpu(dz).intact());
          const Values total = column_sums(absolute(product));
          const Values tolerance = total.zip(column_sums(off), [&](double S, double t) {
            return column_sum(static_cast<double>(size.rows), S, t, dtype(), wide());
          });
          EXPECT_TRUE(near(both.gpu(bias).values(), column_sums(product), tolerance, wide()));
          EXPECT_TRUE(both.gpu(bias).intact());
        }
      }
    }
  }
}

TEST_P(ActivationCudaKernelsTest, BackwardRepeatsItsBits) {
  const Size size{9000, 200};
  BothDevices both;
  const Handle dy = both.matrix(dtype(), normal(size.rows, size.cols, 18, dtype()));
  const Handle dz = both.matrix(dtype(), size.rows, size.cols);
  const Handle mask = both.bytes(random_mask(size, 19));
  std::vector<Handle> biases;
  for (int i = 0; i < 20; ++i) biases.push_back(both.matrix(wide(), 1, size.cols));
  both.run([&](const auto& execution, const auto& at) {
    for (const Handle bias : biases) {
      kernels::activation_backward(execution, {.dy = at.matrix(dy),
                                               .dz = at.matrix(dz),
                                               .activation = Activation::relu,
                                               .mask = at.bytes(mask),
                                               .bias = at.vector(bias)});
    }
  });
  for (const Handle bias : biases) EXPECT_EQ(both.gpu(bias).bytes(), both.gpu(biases[0]).bytes());
}

TEST_P(ColumnSumCudaKernelsTest, IsTheCpusBitForBit) {
  for (const Size& size : kSizes) {
    for (const Layout& layout : kLayouts) {
      for (const Dtype bias_dtype : {dtype(), wide()}) {
        SCOPED_TRACE(describe(size, layout));
        BothDevices both;
        const Handle dz = both.matrix(dtype(), integers(size.rows, size.cols, 20, 8), layout);
        const Handle assigned = both.matrix(bias_dtype, 1, size.cols, layout);
        const Handle added_to = both.matrix(bias_dtype, integers(1, size.cols, 21, 8), layout);
        both.run([&](const auto& execution, const auto& at) {
          kernels::column_sum(execution, {.dz = at.matrix(dz), .bias = at.vector(assigned)});
          kernels::column_sum(execution,
                              {.dz = at.matrix(dz), .bias = at.vector(added_to), .bias_c = at.vector(added_to)});
        });
        EXPECT_TRUE(both.same(assigned));
        EXPECT_TRUE(both.same(added_to));
      }
    }
  }
}

TEST_P(ColumnSumCudaKernelsTest, SumsOnesBeyondTheReachOf16Bits) {
  for (const std::int64_t rows : {1600, 70000}) {
    for (const std::int64_t cols : {1, 8, 24}) {
      BothDevices both;
      const Handle dz = both.matrix(dtype(), Values(rows, cols).map([](double) { return 1.0; }));
      const Handle bias = both.matrix(wide(), 1, cols);
      both.run([&](const auto& execution, const auto& at) {
        kernels::column_sum(execution, {.dz = at.matrix(dz), .bias = at.vector(bias)});
      });
      for (const double got : both.gpu(bias).values().elements) EXPECT_EQ(got, static_cast<double>(rows));
    }
  }
}

TEST_P(ColumnSumCudaKernelsTest, RandomSumsAreWithinTheBound) {
  for (const Size& size : {Size{3000, 520}, Size{20000, 33}, Size{64, 4096}}) {
    const Values values = normal(size.rows, size.cols, 22, dtype());
    BothDevices both;
    const Handle dz = both.matrix(dtype(), values);
    const Handle bias = both.matrix(wide(), 1, size.cols);
    both.run([&](const auto& execution, const auto& at) {
      kernels::column_sum(execution, {.dz = at.matrix(dz), .bias = at.vector(bias)});
    });
    const Values tolerance = column_sums(absolute(values)).map([&](double S) {
      return column_sum(static_cast<double>(size.rows), S, 0, dtype(), wide());
    });
    EXPECT_TRUE(near(both.gpu(bias).values(), column_sums(values), tolerance, wide()));
    EXPECT_TRUE(both.gpu(bias).intact());
  }
}

}  // namespace
}  // namespace fusegrad::test
