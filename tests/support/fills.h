// Operands for tests, on the grid of a dtype: equal for equal seeds, on every machine.
//
// Exact integers are the strongest oracle: every partial sum is representable, so every legal order of summation gives
// the same bits and the tolerance is 0. Normal and adversarial fills are for the bounds in tolerance.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tests/support/values.h"

namespace fusegrad::test {

/// Uniform integers in [-magnitude, magnitude], magnitude <= 8: exact in every dtype. With magnitudes 2 and 1 a product
/// is exact in fp32 up to a reduction length of 2^23.
Values integers(std::int64_t rows, std::int64_t cols, std::uint64_t seed, int magnitude);

/// Integers in [-magnitude, magnitude] of which at most `per_row` a row and `per_column` a column are not zero, so that
/// |sum| <= magnitude * per_row * (the other operand's magnitude): sums that stay exact in a 16-bit output need it
/// <= 256 (bf16) or 2048 (f16).
Values thinned_integers(std::int64_t rows, std::int64_t cols, std::uint64_t seed, int magnitude, std::int64_t per_row,
                        std::int64_t per_column);

/// Standard normal draws; column j is scaled by a power of two in 1/4 .. 2, so that no two axes look alike.
Values normal(std::int64_t rows, std::int64_t cols, std::uint64_t seed, Dtype dtype);

enum class Adversary : std::uint8_t {
  cancelling,   ///< normal, with one pair +-L a row, L near the edge of exact sums
  ramp,         ///< grows along the row over six binades
  alternating,  ///< +v, -v', v and v' a rounding apart
  subnormal,    ///< the dtype's subnormals and smallest normals, among ones
  edge,         ///< the largest values whose products stay finite, mixed with ones
};

constexpr Adversary kAdversaries[] = {Adversary::cancelling, Adversary::ramp, Adversary::alternating,
                                      Adversary::subnormal, Adversary::edge};

std::string_view name_of(Adversary kind);

Values adversarial(std::int64_t rows, std::int64_t cols, std::uint64_t seed, Dtype dtype, Adversary kind);

}  // namespace fusegrad::test
