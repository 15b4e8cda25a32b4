#include <algorithm>
#include <cmath>
#include <numbers>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/random.h>
#include <fusegrad/nn/initializers.h>

namespace fusegrad {

using detail::require;

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
  // Box and Muller: two draws make one value; 1 - u is never 0.
  return [deviation, random = Random(seed, stream)](std::span<float> values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double radius = std::sqrt(-2.0 * std::log(1.0 - static_cast<double>(random.uniform(2 * i))));
      const double angle = 2.0 * std::numbers::pi * static_cast<double>(random.uniform(2 * i + 1));
      values[i] = static_cast<float>(static_cast<double>(deviation) * radius * std::cos(angle));
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
