// The kernels alone: every mix of dtypes, every length around a block or chunk edge, outputs that are inputs.
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/dtypes.h"
#include "tests/support/fills.h"
#include "tests/support/guarded.h"
#include "tests/support/matching.h"
#include "tests/support/tolerance.h"

#include <fusegrad/ops/arithmetic_kernels.h>
#include <fusegrad/ops/cpu/convert.h>
#include <fusegrad/ops/cpu/map.h>

namespace fusegrad::test {
namespace {

using kernels::kBlock;
using kernels::kChunk;

constexpr std::int64_t kLengths[] = {
    0, 1, 3, 15, 16, 17, kBlock - 1, kBlock + 1, 4 * kBlock + 5, kChunk - 1, kChunk + 1, 2 * kChunk + 77};

class ArithmeticKernelTest : public EachDtype {
 protected:
  detail::ThreadPool pool_{3};
  CpuExecution cpu_{pool_};
};
FUSEGRAD_EACH_DTYPE(ArithmeticKernelTest);

TEST_P(ArithmeticKernelTest, WeightedSumIsExactOnIntegers) {
  for (const std::int64_t n : kLengths) {
    const Values a = integers(1, n, 1, 8);
    const Values b = integers(1, n, 2, 8);
    const GuardedMatrix x(dtype(), a, {.offset = 1});
    const GuardedMatrix z(dtype(), b);
    GuardedMatrix y(dtype(), 1, n, {.offset = 3});
    kernels::weighted_sum(cpu_, {.a = x.vector(), .alpha = 2, .b = z.vector(), .beta = -3, .y = y.vector()});
    EXPECT_TRUE(equal(y.values(), a.zip(b, [](double p, double q) { return 2 * p - 3 * q; }), dtype())) << n;
    EXPECT_TRUE(y.intact()) << n;

    y.poison();
    kernels::weighted_sum(cpu_, {.a = x.vector(), .alpha = -4, .y = y.vector()});
    EXPECT_TRUE(equal(y.values(), a.map([](double p) { return -4 * p; }), dtype())) << n;
    EXPECT_TRUE(y.intact()) << n;
  }
}

TEST_P(ArithmeticKernelTest, MultiplyAddIsExactOnIntegers) {
  for (const std::int64_t n : kLengths) {
    const Values a = integers(1, n, 1, 8);
    const Values b = integers(1, n, 2, 8);
    const Values c = integers(1, n, 3, 8);
    const GuardedMatrix x(dtype(), a);
    const GuardedMatrix z(dtype(), b, {.offset = 1});
    const GuardedMatrix w(dtype(), c);
    GuardedMatrix y(dtype(), 1, n, {.offset = 1});
    kernels::multiply_add(cpu_, {.a = x.vector(), .b = z.vector(), .c = w.vector(), .y = y.vector()});
    const Values product = a.zip(b, [](double p, double q) { return p * q; });
    EXPECT_TRUE(equal(y.values(), sum(product, c), dtype())) << n;
    EXPECT_TRUE(y.intact()) << n;

    y.poison();
    kernels::multiply_add(cpu_, {.a = x.vector(), .b = z.vector(), .y = y.vector()});
    EXPECT_TRUE(equal(y.values(), product, dtype())) << n;
    EXPECT_TRUE(y.intact()) << n;
  }
}

TEST_P(ArithmeticKernelTest, AnOutputMayBeAnInput) {
  const std::int64_t n = 3 * kBlock + 11;
  const Values a = integers(1, n, 1, 8);
  const Values b = integers(1, n, 2, 8);
  const Values added = sum(a, b);
  const GuardedMatrix z(dtype(), b);
  GuardedMatrix y(dtype(), a);
  kernels::weighted_sum(cpu_, {.a = y.vector(), .b = z.vector(), .y = y.vector()});
  EXPECT_TRUE(equal(y.values(), added, dtype()));
  y.fill(a);
  kernels::weighted_sum(cpu_, {.a = z.vector(), .b = y.vector(), .y = y.vector()});
  EXPECT_TRUE(equal(y.values(), added, dtype()));
  y.fill(a);
  kernels::multiply_add(cpu_, {.a = z.vector(), .b = z.vector(), .c = y.vector(), .y = y.vector()});
  EXPECT_TRUE(equal(y.values(), a.zip(b, [](double p, double q) { return q * q + p; }), dtype()));
  const GuardedMatrix two(dtype(), Values(1, 1, {2}));
  y.fill(a);
  kernels::broadcast(cpu_, {.x = two.vector(), .divisor = 4, .c = y.vector(), .y = y.vector()});
  EXPECT_TRUE(equal(y.values(), a.map([](double p) { return p + 0.5; }), dtype()));
}

TEST_P(ArithmeticKernelTest, TakesAnyMixOfDtypes) {
  const std::int64_t n = kBlock + 3;
  for (const Dtype second : kFloatingDtypes)
    for (const Dtype output : kFloatingDtypes) {
      const Values a = normal(1, n, 1, dtype());
      const Values b = normal(1, n, 2, second);
      const GuardedMatrix x(dtype(), a);
      const GuardedMatrix z(second, b);
      GuardedMatrix y(output, 1, n);
      const bool wide = kernels::any_f64(dtype(), second, output);
      const double u = wide ? 0x1p-53 : 0x1p-24;
      const auto tolerance = [&](const Values& scale) {
        return scale.map([&](double s) { return 3 * u * std::fabs(s); });
      };
      kernels::weighted_sum(cpu_, {.a = x.vector(), .alpha = 0.75, .b = z.vector(), .beta = 1.5, .y = y.vector()});
      EXPECT_TRUE(near(y.values(), a.zip(b, [](double p, double q) { return 0.75 * p + 1.5 * q; }),
                       tolerance(a.zip(b, [](double p, double q) { return std::fabs(p) + 1.5 * std::fabs(q); })),
                       output));
      kernels::multiply_add(cpu_, {.a = x.vector(), .b = z.vector(), .y = y.vector()});
      const Values product = a.zip(b, [](double p, double q) { return p * q; });
      EXPECT_TRUE(near(y.values(), product, tolerance(product), output));
      EXPECT_TRUE(y.intact());
    }
}

TEST_P(ArithmeticKernelTest, SumIsExactOnIntegersAndFollowsTheBoundElsewhere) {
  for (const std::int64_t n : kLengths) {
    const Values a = integers(1, n, 4, 8);
    const GuardedMatrix x(dtype(), a, {.offset = 1});
    GuardedMatrix y(wide(), 1, 1);
    double exact = 0;
    for (const double value : a.elements) exact += value;
    kernels::sum(cpu_, {.x = x.vector(), .divisor = 2, .y = y.vector()});
    EXPECT_EQ(y.values().at(0, 0), exact / 2) << n;
    EXPECT_TRUE(y.intact());

    const Values b = normal(1, n, 5, dtype());
    const GuardedMatrix z(dtype(), b);
    long double truth = 0;
    double magnitude = 0;
    for (const double value : b.elements) truth += static_cast<long double>(value), magnitude += std::fabs(value);
    kernels::sum(cpu_, {.x = z.vector(), .y = y.vector()});
    const double levels = 36 + std::log2(static_cast<double>(std::max(n, kBlock)) / static_cast<double>(kBlock));
    EXPECT_TRUE(within(y.values().at(0, 0), static_cast<double>(truth), levels * 0x1p-53 * magnitude, wide())) << n;
  }
}

TEST_P(ArithmeticKernelTest, SumKeepsWhatAnFp32SumWouldLose) {
  // In fp32, 2^24 + 1 - 2^24 is 0, and 65504 + 2^-14 - 65504 is too.
  const double large = dtype() == Dtype::f16 ? 65504 : 0x1p24;
  const double small = dtype() == Dtype::f16 ? 0x1p-14 : 1;
  const GuardedMatrix x(dtype(), Values(1, 3, {large, small, -large}));
  GuardedMatrix y(wide(), 1, 1);
  kernels::sum(cpu_, {.x = x.vector(), .y = y.vector()});
  EXPECT_EQ(y.values().at(0, 0), small);
}

TEST_P(ArithmeticKernelTest, BroadcastDividesOnceAndRoundsOnce) {
  for (const std::int64_t n : kLengths) {
    const Values c = integers(1, n, 6, 8);
    const GuardedMatrix x(wide(), Values(1, 1, {98}));
    const GuardedMatrix before(dtype(), c);
    GuardedMatrix y(dtype(), 1, n, {.offset = 1});
    kernels::broadcast(cpu_, {.x = x.vector(), .divisor = 49, .y = y.vector()});
    EXPECT_TRUE(equal(y.values(), c.map([](double) { return 2.0; }), dtype())) << n;
    kernels::broadcast(cpu_, {.x = x.vector(), .divisor = 49, .c = before.vector(), .y = y.vector()});
    EXPECT_TRUE(equal(y.values(), c.map([](double p) { return p + 2; }), dtype())) << n;
    EXPECT_TRUE(y.intact());
  }
}

TEST_P(ArithmeticKernelTest, AnyNumberOfThreadsGivesTheSameBits) {
  const std::int64_t n = 5 * kChunk + 123;
  const GuardedMatrix x(dtype(), normal(1, n, 7, dtype()));
  std::vector<std::vector<std::byte>> sums, products;
  for (const int threads : {1, 2, 3, 4, 8}) {
    detail::ThreadPool pool(threads);
    const CpuExecution cpu{pool};
    GuardedMatrix y(wide(), 1, 1);
    kernels::sum(cpu, {.x = x.vector(), .divisor = 3, .y = y.vector()});
    sums.push_back(y.bytes());
    GuardedMatrix z(dtype(), 1, n);
    kernels::multiply_add(cpu, {.a = x.vector(), .b = x.vector(), .c = x.vector(), .y = z.vector()});
    products.push_back(z.bytes());
  }
  for (std::size_t i = 1; i < sums.size(); ++i) {
    EXPECT_EQ(sums[i], sums[0]);
    EXPECT_EQ(products[i], products[0]);
  }
}

TEST_P(ArithmeticKernelTest, ExtremesAppearWhereTheMathsSays) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const GuardedMatrix a(dtype(), Values(1, 5, {inf, -inf, nan, 0, 1}));
  const GuardedMatrix b(dtype(), Values(1, 5, {1, inf, 1, inf, 1}));
  GuardedMatrix y(dtype(), 1, 5);
  kernels::weighted_sum(cpu_, {.a = a.vector(), .b = b.vector(), .y = y.vector()});
  EXPECT_TRUE(equal(y.values(), Values(1, 5, {inf, nan, nan, inf, 2}), dtype()));
  kernels::multiply_add(cpu_, {.a = a.vector(), .b = b.vector(), .y = y.vector()});
  EXPECT_TRUE(equal(y.values(), Values(1, 5, {inf, -inf, nan, nan, 1}), dtype()));
  GuardedMatrix s(wide(), 1, 1);
  kernels::sum(cpu_, {.x = b.vector(), .y = s.vector()});
  EXPECT_EQ(s.values().at(0, 0), inf);
  kernels::sum(cpu_, {.x = a.vector(), .y = s.vector()});
  EXPECT_TRUE(std::isnan(s.values().at(0, 0)));
}

TEST(ConvertTest, WidensEvery16BitPattern) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const f16 half = f16::from_bits(static_cast<std::uint16_t>(bits));
    const bf16 brain = bf16::from_bits(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(kernels::convert<float>(half)), std::bit_cast<std::uint32_t>(float(half)));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(kernels::convert<float>(brain)), std::bit_cast<std::uint32_t>(float(brain)));
  }
}

TEST(ConvertTest, RoundsFloatsLikeTheirConstructors) {
  // Every f16, its neighbours, the midpoints to the next f16 and their neighbours; then a walk over all exponents.
  const auto check = [](float value) {
    ASSERT_EQ(kernels::convert<f16>(value).bits, f16(value).bits) << value;
    ASSERT_EQ(kernels::convert<bf16>(value).bits, bf16(value).bits) << value;
  };
  const float inf = std::numeric_limits<float>::infinity();
  for (std::uint32_t bits = 0; bits < 0xffff; ++bits) {
    const float value = f16::from_bits(static_cast<std::uint16_t>(bits));
    const float next = f16::from_bits(static_cast<std::uint16_t>(bits + 1));
    for (const float centre : {value, value + (next - value) / 2}) {
      check(centre);
      check(std::nextafter(centre, inf));
      check(std::nextafter(centre, -inf));
    }
  }
  for (std::uint64_t u = 0; u <= 0xffffffffu; u += 65521) check(std::bit_cast<float>(static_cast<std::uint32_t>(u)));
}

}  // namespace
}  // namespace fusegrad::test
