// Normal draws are quantiles of uniform ones, computed from +, -, *, / and the square root alone: a libm differs from
// machine to machine, IEEE arithmetic does not.
#include <algorithm>
#include <cmath>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/random.h>
#include <fusegrad/nn/initializers.h>

namespace fusegrad {

using detail::require;

namespace {

/// Natural logarithm of a positive normal number, within a few units in the last place.
double logarithm(double x) {
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  constexpr double kRootHalf = 0x1.6a09e667f3bcdp-1;
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // [1/2, 1)
  if (mantissa < kRootHalf) {
    mantissa *= 2;
    --exponent;
  }
  // log m = 2 artanh(s) = 2 (s + s^3 / 3 + s^5 / 5 + ...), |s| <= 0.172: eleven terms leave 1e-18.
  const double s = (mantissa - 1) / (mantissa + 1);
  const double s2 = s * s;
  double sum = 0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
  return 2 * s * sum + exponent * kLn2;
}

/// The x of which a share `p` in (0, 1) of the standard normal distribution lies below, to about 1e-7 relative.
/// Source: Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution" (1988), routine PPND7.
double normal_quantile(double p) {
  const double q = p - 0.5;
  if (std::fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179) /
           (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0);
  }
  double r = std::sqrt(-logarithm(q < 0 ? p : 1 - p));
  double x = 0;
  if (r <= 5) {
    r -= 1.6;
    x = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) /
        ((0.12021132975 * r + 0.73700164250) * r + 1.0);
  } else {
    r -= 5;
    x = (((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150) /
        ((0.012258202635 * r + 0.24197894225) * r + 1.0);
  }
  return q < 0 ? -x : x;
}

}  // namespace

Initializer constant(float value) {
  return [value](std::span<float> values) { std::ranges::fill(values, value); };
}

Initializer uniform(float bound, std::uint64_t seed, std::uint64_t stream) {
  require<ValueError>(std::isfinite(bound) && bound >= 0, "uniform: the bound must be finite and >= 0, got {}", bound);
  return [bound, random = Random(seed, stream)](std::span<float> values) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = bound * (2.0f * random.uniform(i) - 1.0f);
  };
}

Initializer normal(float deviation, std::uint64_t seed, std::uint64_t stream) {
  require<ValueError>(std::isfinite(deviation) && deviation >= 0,
                      "normal: the deviation must be finite and >= 0, got {}", deviation);
  return [deviation, random = Random(seed, stream)](std::span<float> values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double share = (static_cast<double>(random.bits(i)) + 0.5) * 0x1p-32;
      values[i] = static_cast<float>(static_cast<double>(deviation) * normal_quantile(share));
    }
  };
}

Initializer layer_weights(Initialization kind, std::int64_t in, std::int64_t out, std::uint64_t seed,
                          std::uint64_t stream) {
  require<ValueError>(in >= 0 && out >= 0, "layer_weights: in and out must be >= 0, got {} and {}", in, out);
  const bool he = kind == Initialization::he_uniform || kind == Initialization::he_normal;
  const auto fan = static_cast<double>(std::max<std::int64_t>(he ? in : in + out, 1));  // no weights, no matter
  if (kind == Initialization::he_uniform || kind == Initialization::xavier_uniform) {
    return uniform(static_cast<float>(std::sqrt(6.0 / fan)), seed, stream);
  }
  return normal(static_cast<float>(std::sqrt(2.0 / fan)), seed, stream);
}

}  // namespace fusegrad
