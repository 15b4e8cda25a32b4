#include "tests/support/fills.h"

#include <cmath>
#include <numbers>
#include <vector>

#include <fusegrad/autograd/random.h>

namespace fusegrad::test {
namespace {

constexpr std::uint64_t kStream = 0x7e57;

double normal_draw(const Random& random, std::uint64_t index) {
  const double radius = std::sqrt(-2 * std::log(1 - static_cast<double>(random.uniform(2 * index))));
  return radius * std::cos(2 * std::numbers::pi * static_cast<double>(random.uniform(2 * index + 1)));
}

/// Largest value whose products, summed a few thousand times, stay finite in the accumulation dtype; for f16, whose
/// products cannot overflow fp32, the largest one.
double edge_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64: return 0x1.fp500;
    case Dtype::f16: return 65504;
    default: return 0x1.fp55;
  }
}

double smallest_subnormal(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64: return 0x1p-1074;
    case Dtype::f16: return 0x1p-24;
    case Dtype::bf16: return 0x1p-133;
    default: return 0x1p-149;
  }
}

double smallest_normal(Dtype dtype) {
  return dtype == Dtype::f64 ? 0x1p-1022 : dtype == Dtype::f16 ? 0x1p-14 : 0x1p-126;
}

double unit(Dtype dtype) {
  return dtype == Dtype::f64 ? 0x1p-52 : dtype == Dtype::f16 ? 0x1p-10 : dtype == Dtype::bf16 ? 0x1p-7 : 0x1p-23;
}

double adversarial_element(const Random& random, std::int64_t i, std::int64_t j, std::int64_t cols, Dtype dtype,
                           Adversary kind) {
  const auto index = static_cast<std::uint64_t>(i * cols + j);
  const double draw = normal_draw(random, index);
  const double sign = draw < 0 ? -1 : 1;
  switch (kind) {
    case Adversary::cancelling: {
      if (cols < 2) return draw;
      const std::int64_t first = random.below(~static_cast<std::uint64_t>(i), static_cast<std::uint32_t>(cols));
      const std::int64_t second = (first + 1 + cols / 3) % cols;
      const double large = dtype == Dtype::f64 ? 0x1p52 : dtype == Dtype::f16 ? 0x1p14 : 0x1p23;
      return j == first ? large : j == second && second != first ? -large : draw;
    }
    case Adversary::ramp:
      return std::exp2(6.0 * static_cast<double>(j) / static_cast<double>(cols)) * (1 + std::fabs(draw) / 16);
    case Adversary::alternating: return j % 2 == 0 ? 1 + unit(dtype) * static_cast<double>(i % 3) : -1;
    case Adversary::subnormal: {
      const std::uint32_t pick = random.below(index, 4);
      if (pick == 0) return sign;
      if (pick == 1) return sign * smallest_normal(dtype);
      return sign * smallest_subnormal(dtype) * (1 + random.below(index + 1, 7));
    }
    case Adversary::edge: return random.below(index, 3) == 0 ? sign * edge_of(dtype) : draw;
  }
  return 0;
}

}  // namespace

Values integers(std::int64_t rows, std::int64_t cols, std::uint64_t seed, int magnitude) {
  const Random random(seed, kStream);
  Values values(rows, cols);
  const auto choices = static_cast<std::uint32_t>(2 * magnitude + 1);
  // Four elements a draw: a byte is enough for one.
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < values.elements.size(); ++i, bits >>= 8) {
    if (i % 4 == 0) bits = random.bits(i / 4);
    values.elements[i] = static_cast<double>(((bits & 0xffu) * choices) >> 8) - magnitude;
  }
  return values;
}

Values thinned_integers(std::int64_t rows, std::int64_t cols, std::uint64_t seed, int magnitude, std::int64_t per_row,
                        std::int64_t per_column) {
  const Values dense = integers(rows, cols, seed, magnitude);
  Values values(rows, cols);
  std::vector<std::int64_t> in_column(static_cast<std::size_t>(cols));
  const Random random(seed, kStream + 1);
  for (std::int64_t i = 0; i < rows; ++i) {
    // A row starts at a random column and steps by a number coprime to most widths, so that the places differ by row.
    const auto start = cols == 0 ? 0 : random.below(static_cast<std::uint64_t>(i), static_cast<std::uint32_t>(cols));
    std::int64_t kept = 0;
    for (std::int64_t step = 0; step < cols && kept < per_row; ++step) {
      const std::int64_t j = (start + step * 7919) % cols;
      if (in_column[static_cast<std::size_t>(j)] >= per_column || values.at(i, j) != 0 || dense.at(i, j) == 0) continue;
      values.at(i, j) = dense.at(i, j);
      ++in_column[static_cast<std::size_t>(j)];
      ++kept;
    }
  }
  return values;
}

Values normal(std::int64_t rows, std::int64_t cols, std::uint64_t seed, Dtype dtype) {
  const Random random(seed, kStream + 2);
  Values values(rows, cols);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j)
      values.at(i, j) =
          on_grid(normal_draw(random, static_cast<std::uint64_t>(i * cols + j)) * std::exp2(j % 4 - 2), dtype);
  return values;
}

std::string_view name_of(Adversary kind) {
  switch (kind) {
    case Adversary::cancelling: return "cancelling";
    case Adversary::ramp: return "ramp";
    case Adversary::alternating: return "alternating";
    case Adversary::subnormal: return "subnormal";
    case Adversary::edge: return "edge";
  }
  return "?";
}

Values adversarial(std::int64_t rows, std::int64_t cols, std::uint64_t seed, Dtype dtype, Adversary kind) {
  const Random random(seed, kStream + 3);
  Values values(rows, cols);
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < cols; ++j)
      values.at(i, j) = on_grid(adversarial_element(random, i, j, cols, dtype, kind), dtype);
  return values;
}

}  // namespace fusegrad::test
