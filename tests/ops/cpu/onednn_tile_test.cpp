// Tiles by oneDNN: every layout and dtype, exact where sums are, single-threaded whatever OpenMP is set to.
#include <filesystem>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "tests/support/fills.h"
#include "tests/support/guarded.h"
#include "tests/support/matching.h"
#include "tests/support/tolerance.h"

#include <fusegrad/ops/cpu/onednn_tile.h>
#include <fusegrad/ops/linear_kernels.h>

namespace fusegrad::test {
namespace {

constexpr Dtype kFactorDtypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16};
constexpr detail::Range kRows{5, 102};
constexpr detail::Range kCols{17, 150};
constexpr detail::Range kTerms{3, 703};  // several blocks of conversion, the last a short one

detail::Factor factor_of(const GuardedMatrix& matrix, bool transposed) {
  const ConstMatrix view = matrix.matrix();
  return {.data = view.data, .ld = view.ld, .dtype = view.dtype, .transposed = transposed};
}

Values block_of(const Values& from, detail::Range rows, detail::Range cols) {
  Values block(rows.size(), cols.size());
  for (std::int64_t i = 0; i < block.rows; ++i)
    for (std::int64_t j = 0; j < block.cols; ++j) block.at(i, j) = from.at(rows.begin + i, cols.begin + j);
  return block;
}

/// One tile of a b, in every layout of a and b.
void expect_tile(const Values& a, const Values& b, Dtype dtype, const Values& ref, auto matches) {
  for (const bool transpose_a : {false, true})
    for (const bool transpose_b : {false, true}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + (transpose_a ? " T" : " N") + (transpose_b ? "T" : "N"));
      const GuardedMatrix left(dtype, transpose_a ? transposed(a) : a, {.padding = 3, .offset = 1});
      const GuardedMatrix right(dtype, transpose_b ? transposed(b) : b, {.padding = 5});
      GuardedMatrix sums(Dtype::f32, ref.rows, ref.cols, {.padding = 7});
      const detail::Factor a_factor = factor_of(left, transpose_a);
      std::vector<float> buffer(
          static_cast<std::size_t>(detail::onednn_buffer_size(a_factor, kRows.size(), kCols.size())));
      detail::multiply_tile_by_onednn(a_factor, factor_of(right, transpose_b), kRows, kCols, kTerms,
                                      static_cast<float*>(sums.matrix().data), sums.matrix().ld, buffer.data());
      EXPECT_TRUE(matches(sums.values(), ref));
      EXPECT_TRUE(sums.intact());
    }
}

TEST(OnednnTileTest, IsExactOnIntegersInEveryLayoutAndDtype) {
  const Values a = integers(110, 710, 1, 2);
  const Values b = integers(710, 155, 2, 1);
  const Values ref = product(block_of(a, kRows, kTerms), block_of(b, kTerms, kCols));
  ASSERT_TRUE(mostly_nonzero(ref));
  for (const Dtype dtype : kFactorDtypes)
    expect_tile(a, b, dtype, ref, [](const Values& got, const Values& want) { return equal(got, want, Dtype::f32); });
}

TEST(OnednnTileTest, StaysWithinTheAlarmBoundOnEveryFill) {
  for (const Dtype dtype : kFactorDtypes)
    for (const Adversary kind : kAdversaries) {
      SCOPED_TRACE(name_of(kind));
      const Values a = adversarial(110, 710, 3, dtype, kind);
      const Values b = normal(710, 155, 4, dtype);
      const Values left = block_of(a, kRows, kTerms), right = block_of(b, kTerms, kCols);
      const auto terms = static_cast<double>(kTerms.size());
      const Values bound =
          product(absolute(left), absolute(right)).map([&](double S) { return alarm(terms, S, Dtype::f32); });
      expect_tile(a, b, dtype, product(left, right),
                  [&](const Values& got, const Values& ref) { return near(got, ref, bound, Dtype::f32); });
    }
}

/// dw and the bias gradient of wide layers and many rows, which only oneDNN's rule for deep sums takes.
TEST(OnednnTileTest, BothLibrariesAreWithinTheBoundOfADeepProduct) {
  constexpr std::int64_t kBatch = 2100, kOut = 530, kIn = 560;
  const Values dz = normal(kBatch, kOut, 5, Dtype::f32), x = normal(kBatch, kIn, 6, Dtype::f32);
  const Values dw = product(transposed(dz), x), db = column_sums(dz);
  const auto bound = [](double S) { return alarm(kBatch, S, Dtype::f32); };
  const Values dw_bound = product(transposed(absolute(dz)), absolute(x)).map(bound);
  const Values db_bound = column_sums(absolute(dz)).map(bound);
  const GuardedMatrix dz_matrix(Dtype::f32, dz), x_matrix(Dtype::f32, x);
  detail::ThreadPool pool(2);
  std::vector<std::vector<std::byte>> bits;
  for (const ProductLibrary library : {ProductLibrary::eigen, ProductLibrary::onednn}) {
    SCOPED_TRACE(name_of(library));
    GuardedMatrix got(Dtype::f32, kOut, kIn), bias(Dtype::f32, 1, kOut);
    const kernels::FusedResult result = kernels::linear_weight_gradient(
        {pool, library}, {.dz = dz_matrix.matrix(), .x = x_matrix.matrix(), .dw = got.matrix(), .bias = bias.vector()});
    EXPECT_EQ(result.product, library == ProductLibrary::onednn ? "dw: oneDNN" : "dw: Eigen");
    EXPECT_TRUE(near(got.values(), dw, dw_bound, Dtype::f32));
    EXPECT_TRUE(near(bias.values(), db, db_bound, Dtype::f32));
    bits.push_back(got.bytes());
  }
  EXPECT_NE(bits[0], bits[1]) << "one library did both, or their sums agree to the last bit";
}

std::size_t threads_of_this_process() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

TEST(OnednnTileTest, StartsNoThreadsAndLeavesOpenMpAsItWas) {
  const auto max_threads = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  const auto set_threads = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (!max_threads || !set_threads) GTEST_SKIP() << "this oneDNN does not use OpenMP";
  const int before = max_threads();
  set_threads(4);
  const Values a = integers(110, 710, 1, 2), b = integers(710, 155, 2, 1);
  const GuardedMatrix left(Dtype::f32, a), right(Dtype::f32, b);
  GuardedMatrix sums(Dtype::f32, kRows.size(), kCols.size());
  const std::size_t threads = threads_of_this_process();
  for (int i = 0; i < 3; ++i)
    detail::multiply_tile_by_onednn(factor_of(left, false), factor_of(right, false), kRows, kCols, kTerms,
                                    static_cast<float*>(sums.matrix().data), sums.matrix().ld, nullptr);
  EXPECT_EQ(threads_of_this_process(), threads);
  EXPECT_EQ(max_threads(), 4);
  set_threads(before);
}

TEST(OnednnTileTest, IsChosenForFloatsWhereItIsAllowedAndFaster) {
  const auto library = [](bool transpose_a, const detail::ProductSize& size, ProductLibrary allowed) {
    const detail::Factor a{.ld = transpose_a ? size.m : size.depth, .transposed = transpose_a}, b{.ld = size.n};
    return detail::TiledProduct<float>(a, b, size, allowed).library();
  };
  constexpr ProductLibrary kEigen = ProductLibrary::eigen, kOnednn = ProductLibrary::onednn;
  for (const bool transpose_a : {false, true}) {
    EXPECT_EQ(library(transpose_a, {64, 64, 64}, kOnednn), kOnednn);
    EXPECT_EQ(library(transpose_a, {64, 64, 64}, kEigen), kEigen);
    EXPECT_EQ(library(transpose_a, {8, 8, 8}, kOnednn), kEigen) << "not worth a call";
  }
  EXPECT_EQ(library(true, {1024, 1024, 4096}, kOnednn), kOnednn);
  const detail::Factor f64{.ld = 64, .dtype = Dtype::f64};
  EXPECT_EQ(detail::TiledProduct<double>(f64, f64, {64, 64, 64}, kOnednn).library(), kEigen);
}

}  // namespace
}  // namespace fusegrad::test
