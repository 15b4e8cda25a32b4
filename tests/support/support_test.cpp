// The oracles themselves: each must refuse what it is there to refuse.
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "tests/support/fills.h"
#include "tests/support/gemm_shapes.h"
#include "tests/support/guarded.h"
#include "tests/support/masks.h"
#include "tests/support/matching.h"
#include "tests/support/tolerance.h"

namespace fusegrad::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(GuardedMatrixTest, SeesWritesOutsideItsElements) {
  for (const Layout layout : {Layout{}, Layout{.padding = 3, .offset = 1}}) {
    for (const std::ptrdiff_t where : {-1, 2 * (5 + static_cast<int>(layout.padding)) + 5}) {
      GuardedMatrix matrix(Dtype::f32, 3, 5, layout);
      EXPECT_TRUE(matrix.intact());
      static_cast<float*>(matrix.matrix().data)[where] = 1;
      EXPECT_FALSE(matrix.intact()) << where;
    }
  }
  GuardedMatrix padded(Dtype::f16, 2, 3, {.padding = 1});
  static_cast<std::uint16_t*>(padded.matrix().data)[3] = 0;
  EXPECT_FALSE(padded.intact()) << "between the rows";
  GuardedBytes bytes(16, 0);
  bytes.data()[16] = 0;
  EXPECT_FALSE(bytes.intact());
}

TEST(GuardedMatrixTest, KeepsValuesAndStartsPoisoned) {
  const Values values(2, 2, {1, -2, 0.5, 256});
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    GuardedMatrix matrix(dtype, 2, 2, {.padding = 1, .offset = 1});
    for (const double element : matrix.values().elements) EXPECT_TRUE(std::isnan(element));
    matrix.fill(values);
    EXPECT_TRUE(equal(matrix.values(), values, dtype));
    EXPECT_TRUE(matrix.intact());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(matrix.matrix().data) % 256, size_of(dtype));
  }
}

TEST(MatchingTest, AcceptsTheInterval) {
  EXPECT_TRUE(within(1.0, 1.0, 0, Dtype::f64));
  EXPECT_TRUE(within(257 - 1, 257, 0, Dtype::bf16)) << "257 rounds to 256 in bf16";
  EXPECT_FALSE(within(258, 257, 0, Dtype::bf16));
  EXPECT_TRUE(within(258, 257, 0.01, Dtype::bf16));
  EXPECT_FALSE(within(260, 257, 0.01, Dtype::bf16));
  EXPECT_TRUE(within(-0.0, 0.0, 0, Dtype::f32));
}

TEST(MatchingTest, RefusesNanAndTheWrongInfinity) {
  EXPECT_FALSE(within(kNan, 1, 100, Dtype::f32));
  EXPECT_FALSE(within(1, kNan, 100, Dtype::f32));
  EXPECT_TRUE(within(kNan, kNan, 0, Dtype::f32));
  EXPECT_FALSE(within(-kInf, kInf, kInf, Dtype::f32));
  EXPECT_FALSE(within(1e30, kInf, 1, Dtype::f32));
  EXPECT_TRUE(within(kInf, 70000, 0, Dtype::f16));
  EXPECT_FALSE(equal(Values(1, 2, {1, kNan}), Values(1, 2, {1, 2}), Dtype::f32));
  EXPECT_FALSE(equal(Values(1, 2), Values(2, 1), Dtype::f32));
  EXPECT_FALSE(mostly_nonzero(Values(2, 2, {0, 0, 0, 1})));
}

TEST(ToleranceTest, AlarmStandsBetweenLegalAndIllegalSums) {
  // Measured: the worst legal accumulator at k = 2048 is off by 51.3 u S, one that drops a term by about S / k.
  const double alarm_2048 = alarm(2048, 1, Dtype::f32) / 0x1p-24;
  EXPECT_GT(alarm_2048, 51.3 * 7);
  EXPECT_LT(alarm(2048, 1, Dtype::f32), 1.0 / 2048);
  EXPECT_LT(alarm(2048, 1, Dtype::f32), hard(2048, 1, Dtype::f32));
}

TEST(FillsTest, AreOnTheGridAndVary) {
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (const Adversary kind : kAdversaries) {
      const Values values = adversarial(4, 9, 3, dtype, kind);
      EXPECT_TRUE(equal(values, on_grid(values, dtype), dtype)) << name_of(kind);
      EXPECT_GT(std::set<double>(values.elements.begin(), values.elements.end()).size(), 1u) << name_of(kind);
      for (const double element : values.elements) EXPECT_TRUE(std::isfinite(element));
    }
    EXPECT_TRUE(mostly_nonzero(normal(20, 20, 1, dtype), 0.01));
  }
  const Values first = integers(31, 33, 7, 2);
  EXPECT_EQ(first.elements, integers(31, 33, 7, 2).elements);
  EXPECT_NE(first.elements, integers(31, 33, 8, 2).elements);
  EXPECT_EQ(std::set<double>(first.elements.begin(), first.elements.end()), (std::set<double>{-2, -1, 0, 1, 2}));
}

TEST(FillsTest, ThinnedIntegersKeepTheirPromise) {
  const Values values = thinned_integers(50, 70, 5, 2, 6, 9);
  const Values nonzero = values.map([](double value) { return value != 0 ? 1.0 : 0.0; });
  double most = 0;
  for (const double count : column_sums(nonzero).elements) {
    EXPECT_LE(count, 9);
    most = std::max(most, count);
  }
  EXPECT_GT(most, 3);
  for (const double count : column_sums(transposed(nonzero)).elements) EXPECT_LE(count, 6);
}

TEST(MasksTest, FollowTheLayout) {
  const Values z(1, 9, {-1, 0, -0.0, 1, kNan, -kInf, kInf, -1, 1});
  std::vector<std::uint8_t> mask = mask_of(z);
  ASSERT_EQ(mask.size(), 16u);
  EXPECT_EQ(mask[0], 0b01001110);
  EXPECT_EQ(mask[1], 1);
  EXPECT_TRUE(is_mask_of(mask.data(), z));
  flip_padding(mask.data(), 1, 9);
  EXPECT_EQ(mask[1], 0xFF);
  EXPECT_EQ(mask[15], 0xFF);
  EXPECT_FALSE(is_mask_of(mask.data(), z));
}

TEST(GemmShapesTest, AreNinetySixWithinTheLimit) {
  const auto shapes = gemm_shapes(1);
  EXPECT_EQ(shapes.size(), 96u);
  std::set<std::int64_t> m, n, k;
  for (const GemmShape& shape : shapes) {
    EXPECT_LE(shape.multiplications(), std::int64_t{1} << 28);
    m.insert(shape.m);
    n.insert(shape.n);
    k.insert(shape.k);
  }
  for (const std::int64_t edge :
       {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257}) {
    EXPECT_TRUE(m.contains(edge)) << edge;
    EXPECT_TRUE(n.contains(edge)) << edge;
    EXPECT_TRUE(k.contains(edge)) << edge;
  }
}

}  // namespace
}  // namespace fusegrad::test
