#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/random.h>
#include <fusegrad/nn/initializers.h>

namespace fusegrad {
namespace {

std::vector<float> draw(const Initializer& initializer, std::size_t count = 40000) {
  std::vector<float> values(count, std::numeric_limits<float>::quiet_NaN());
  initializer(values);
  return values;
}

double mean_of(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double mean_square_of(const std::vector<float>& values) {
  return std::inner_product(values.begin(), values.end(), values.begin(), 0.0) / static_cast<double>(values.size());
}

/// Mean 0 and the given variance, each within five standard errors (`kurtosis` is E x^4 / (E x^2)^2).
void expect_moments(const std::vector<float>& values, double variance, double kurtosis) {
  const auto n = static_cast<double>(values.size());
  EXPECT_NEAR(mean_of(values), 0, 5 * std::sqrt(variance / n));
  EXPECT_NEAR(mean_square_of(values), variance, 5 * variance * std::sqrt((kurtosis - 1) / n));
}

double share_below(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

double normal_density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * 3.14159265358979323846); }

TEST(InitializersTest, ConstantsAreConstant) {
  EXPECT_EQ(draw(constant(0.25f), 3), (std::vector<float>{0.25f, 0.25f, 0.25f}));
}

TEST(InitializersTest, UniformDrawsAreTheGeneratorsPublishedOnes) {
  // Philox4x32-10 of counter 0 under key 0, from its authors' table of known answers.
  const std::uint32_t words[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  const std::vector<float> values = draw(uniform(1, 0, 0), 4);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(values[i], 2 * static_cast<float>(words[i] >> 8) * 0x1p-24f - 1) << i;
  }
}

TEST(InitializersTest, UniformDrawsFillTheirRange) {
  const float bound = 0.3f;
  const std::vector<float> values = draw(uniform(bound, 7, 3));
  const auto [low, high] = std::ranges::minmax(values);
  EXPECT_GE(low, -bound);
  EXPECT_LT(high, bound);
  EXPECT_LT(low, -0.999f * bound);
  EXPECT_GT(high, 0.999f * bound);
  expect_moments(values, double{bound} * bound / 3, 1.8);
}

TEST(InitializersTest, NormalDrawsAreQuantilesOfTheGeneratorsDraws) {
  const std::vector<float> values = draw(normal(1, 11, 5));
  const Random random(11, 5);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = values[i];
    const double share = (random.bits(i) + 0.5) * 0x1p-32;
    // 2e-7 relative: 1e-7 of the approximation, half an ulp of the float, and erfc's own error.
    ASSERT_NEAR(share_below(x), share, normal_density(x) * 2e-7 * std::fabs(x) + 1e-15) << "draw " << i << " is " << x;
  }
  expect_moments(values, 1, 3);
}

TEST(InitializersTest, NormalDrawsReachTheTails) {
  const std::vector<float> values = draw(normal(1, 1, 1), 2'000'000);
  const auto [low, high] = std::ranges::minmax(values);
  EXPECT_LT(low, -4.5f);
  EXPECT_GT(high, 4.5f);
  EXPECT_LT(std::max(-low, high), 6.5f);
  const auto beyond_3 = std::ranges::count_if(values, [](float value) { return std::fabs(value) > 3; });
  EXPECT_NEAR(static_cast<double>(beyond_3), 2 * share_below(-3) * 2e6, 5 * std::sqrt(5400.0));
}

TEST(InitializersTest, NormalDrawsHaveTheSameBitsOnEveryMachine) {
  std::vector<std::uint32_t> bits;
  for (const float value : draw(normal(1, 0, 0), 6)) bits.push_back(std::bit_cast<std::uint32_t>(value));
  EXPECT_EQ(bits, (std::vector<std::uint32_t>{3196254799, 1066842960, 1059148728, 1049165291, 1073027143, 3199511556}));
}

TEST(InitializersTest, DrawsDependOnSeedAndStreamAlone) {
  for (const auto make : {uniform, normal}) {
    const std::vector<float> values = draw(make(1, 3, 4), 100);
    EXPECT_EQ(draw(make(1, 3, 4), 100), values);
    EXPECT_NE(draw(make(1, 4, 4), 100), values);
    EXPECT_NE(draw(make(1, 3, 5), 100), values);
    const std::vector<float> longer = draw(make(1, 3, 4), 101);
    EXPECT_TRUE(std::equal(values.begin(), values.end(), longer.begin())) << "draw i does not depend on the size";
  }
}

TEST(InitializersTest, LayersHaveTheVarianceOfTheirKind) {
  const std::int64_t in = 200;
  const std::int64_t out = 50;
  const auto draws = [&](Initialization kind) { return draw(layer_weights(kind, in, out, 2, 0)); };
  expect_moments(draws(Initialization::he_uniform), 2.0 / 200, 1.8);
  expect_moments(draws(Initialization::he_normal), 2.0 / 200, 3);
  expect_moments(draws(Initialization::xavier_uniform), 2.0 / 250, 1.8);
  expect_moments(draws(Initialization::xavier_normal), 2.0 / 250, 3);
  const auto bound = static_cast<float>(std::sqrt(6.0 / 200));
  EXPECT_EQ(draws(Initialization::he_uniform), draw(uniform(bound, 2, 0)));
}

TEST(InitializersTest, ValuesOutOfRangeAreRefused) {
  for (const float bad : {-1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THROW(uniform(bad, 0, 0), ValueError) << bad;
    EXPECT_THROW(normal(bad, 0, 0), ValueError) << bad;
  }
  EXPECT_THROW(layer_weights(Initialization::he_uniform, -1, 1, 0, 0), ValueError);
  EXPECT_THROW(layer_weights(Initialization::he_uniform, 1, -1, 0, 0), ValueError);
}

}  // namespace
}  // namespace fusegrad
