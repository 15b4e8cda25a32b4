// The GPU's elementwise kernels and full sums against the CPU's. Elementwise ones give the same bits on any values: one
// rounding an operation, in the same order, on both.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tests/support/both_devices.h"
#include "tests/support/device.h"
#include "tests/support/dtypes.h"
#include "tests/support/fills.h"
#include "tests/support/matching.h"

#include <fusegrad/ops/arithmetic_kernels.h>

namespace fusegrad::test {
namespace {

using Handle = BothDevices::Handle;

// Edges of packets and of blocks; the last takes several blocks of a sum.
constexpr std::int64_t kLengths[] = {0, 1, 2, 3, 7, 8, 9, 31, 257, 2048, 4097, 8191, 8193, 300001};

class ArithmeticCudaKernelsTest : public EachDtype {
 protected:
  void SetUp() override { skip_without(DeviceType::cuda); }
};
FUSEGRAD_EACH_DTYPE(ArithmeticCudaKernelsTest);

using SumCudaKernelsTest = ArithmeticCudaKernelsTest;
FUSEGRAD_EACH_DTYPE(SumCudaKernelsTest);

TEST_P(ArithmeticCudaKernelsTest, GiveTheCpusBits) {
  for (const std::int64_t n : kLengths) {
    for (const std::int64_t offset : {0, 1}) {
      SCOPED_TRACE(n);
      BothDevices both;
      const Handle a = both.matrix(dtype(), normal(1, n, 1, dtype()), {.offset = offset});
      const Handle b = both.matrix(dtype(), normal(1, n, 2, dtype()));
      const Handle c = both.matrix(dtype(), normal(1, n, 3, dtype()));
      const Handle scalar = both.matrix(wide(), Values(1, 1, {0.7}));
      std::vector<Handle> y;
      for (int i = 0; i < 6; ++i) y.push_back(both.matrix(dtype(), 1, n, {.offset = offset}));
      both.run([&](const auto& execution, const auto& at) {
        const Vector x = at.vector(a);
        kernels::weighted_sum(execution, {.a = x, .alpha = 0.3, .y = at.vector(y[0])});
        kernels::weighted_sum(execution, {.a = x, .alpha = 0.3, .b = at.vector(b), .beta = -1.7, .y = at.vector(y[1])});
        kernels::multiply_add(execution, {.a = x, .b = at.vector(b), .y = at.vector(y[2])});
        kernels::multiply_add(execution, {.a = x, .b = at.vector(b), .c = at.vector(c), .y = at.vector(y[3])});
        kernels::broadcast(execution, {.x = at.vector(scalar), .divisor = 3, .y = at.vector(y[4])});
        kernels::broadcast(execution, {.x = at.vector(scalar), .divisor = 3, .c = x, .y = at.vector(y[5])});
      });
      for (const Handle result : y) EXPECT_TRUE(both.same(result));
    }
  }
}

TEST_P(ArithmeticCudaKernelsTest, TakeAnyMixOfDtypes) {
  const std::int64_t n = 1027;
  for (const Dtype b_dtype : kFloatingDtypes) {
    for (const Dtype y_dtype : kFloatingDtypes) {
      for (const std::int64_t offset : {0, 1}) {
        BothDevices both;
        const Handle a = both.matrix(dtype(), normal(1, n, 4, dtype()));
        const Handle b = both.matrix(b_dtype, normal(1, n, 5, b_dtype), {.offset = offset});
        const Handle c = both.matrix(y_dtype, normal(1, n, 6, y_dtype));
        const Handle sums = both.matrix(y_dtype, 1, n);
        const Handle products = both.matrix(y_dtype, 1, n);
        both.run([&](const auto& execution, const auto& at) {
          kernels::weighted_sum(execution, {.a = at.vector(a), .alpha = 0.3, .b = at.vector(b), .y = at.vector(sums)});
          kernels::multiply_add(execution,
                                {.a = at.vector(a), .b = at.vector(b), .c = at.vector(c), .y = at.vector(products)});
        });
        EXPECT_TRUE(both.same(sums)) << name_of(b_dtype) << " " << name_of(y_dtype);
        EXPECT_TRUE(both.same(products)) << name_of(b_dtype) << " " << name_of(y_dtype);
      }
    }
  }
}

TEST_P(ArithmeticCudaKernelsTest, AnOutputMayBeAnInput) {
  const std::int64_t n = 3001;
  BothDevices both;
  const Handle y = both.matrix(dtype(), normal(1, n, 7, dtype()));
  const Handle b = both.matrix(dtype(), normal(1, n, 8, dtype()));
  both.run([&](const auto& execution, const auto& at) {
    const Vector v = at.vector(y);
    kernels::weighted_sum(execution, {.a = v, .alpha = 0.5, .b = at.vector(b), .y = v});
    kernels::weighted_sum(execution, {.a = at.vector(b), .b = v, .beta = 0.25, .y = v});
    kernels::multiply_add(execution, {.a = v, .b = v, .c = v, .y = v});
  });
  EXPECT_TRUE(both.same(y));
}

TEST_P(ArithmeticCudaKernelsTest, RoundOnceAndKeepNanAndInfinities) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  // Halfway cases of bf16 and f16, overflow of f16, subnormals of every type.
  const Values values(1, 14,
                      {1.00390625 + 0x1p-40, 1.00048828125 + 0x1p-40, 1.00390625, 1.01171875, 1.00048828125,
                       1.00146484375, 65519.99, 65520, 1e-7, 6e-8, 1e-40, inf, -inf, nan});
  for (const Dtype from : {Dtype::f64, Dtype::f32}) {
    BothDevices both;
    const Handle x = both.matrix(from, values);
    const Handle y = both.matrix(dtype(), 1, 14);
    both.run([&](const auto& execution, const auto& at) {
      kernels::weighted_sum(execution, {.a = at.vector(x), .y = at.vector(y)});
    });
    EXPECT_TRUE(both.same(y));
  }
}

TEST_P(SumCudaKernelsTest, IsExactOnIntegers) {
  for (const std::int64_t n : kLengths) {
    for (const std::int64_t offset : {0, 1}) {
      const Values values = integers(1, n, 9, 8);
      BothDevices both;
      const Handle x = both.matrix(dtype(), values, {.offset = offset});
      const Handle y = both.matrix(wide(), 1, 1);
      both.run([&](const auto& execution, const auto& at) {
        kernels::sum(execution, {.x = at.vector(x), .divisor = 4, .y = at.vector(y)});
      });
      EXPECT_TRUE(both.same(y)) << n;
    }
  }
}

TEST_P(SumCudaKernelsTest, IsRoundedOnceAndRepeatsItsBits) {
  const std::int64_t n = 1000003;
  const Values values = normal(1, n, 10, dtype());
  double total = 0;
  double magnitude = 0;
  for (const double value : values.elements) {
    total += value;
    magnitude += std::fabs(value);
  }
  BothDevices both;
  const Handle x = both.matrix(dtype(), values);
  std::vector<Handle> y;
  for (int i = 0; i < 20; ++i) y.push_back(both.matrix(wide(), 1, 1));
  both.run([&](const auto& execution, const auto& at) {
    for (const Handle result : y) {
      kernels::sum(execution, {.x = at.vector(x), .divisor = 3, .y = at.vector(result)});
    }
  });
  // The sum of n terms in fp64, whatever the order, is off by at most n u of their magnitude.
  EXPECT_TRUE(
      within(both.gpu(y[0]).values().at(0, 0), total / 3, static_cast<double>(n) * 0x1p-53 * magnitude, wide()));
  for (const Handle result : y) EXPECT_EQ(both.gpu(result).bytes(), both.gpu(y[0]).bytes());
}

/// Sizes beyond 32 bits: half a minute of copying on a CPU, so only the GPU's result, which is known.
using BeyondTwoGigaCudaKernelsLong = DeviceTest;
INSTANTIATE_TEST_SUITE_P(Each, BeyondTwoGigaCudaKernelsLong, testing::Values(DeviceType::cuda), device_name);

TEST_P(BeyondTwoGigaCudaKernelsLong, ElementsAreAllReached) {
  const std::int64_t n = (std::int64_t{1} << 31) + 1029;
  Tensor x = Tensor::full(context(), {n}, Dtype::bf16, 1);
  Tensor y = Tensor::empty(context(), {}, Dtype::f64);
  const kernels::WeightedSum doubled{.a = vector_of(x), .alpha = 2, .y = mutable_vector_of(x)};
  const kernels::Sum sum{.x = vector_of(x), .y = mutable_vector_of(y)};
  dispatch(context(), [&](const auto& execution) {
    kernels::weighted_sum(execution, doubled);
    kernels::sum(execution, sum);
  });
  EXPECT_EQ(y.item(), 2 * static_cast<double>(n));
}

}  // namespace
}  // namespace fusegrad::test
