// The shapes on which products are tested: where kernels switch from one path to another, and what users have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fusegrad::test {

/// y [m, n] = x [m, k] w [n, k]ᵀ.
struct GemmShape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;

  std::int64_t multiplications() const { return m * n * k; }
};

std::string to_string(const GemmShape& shape);

/// 96 shapes of at most 2^28 multiplications: 40 pairs of the edges {0, 1, 2, 3, 7, 8, 9, ... 255, 256, 257}, 12 skinny
/// ones, 20 layers of real networks, 24 random ones drawn from `seed`. Square and not.
std::vector<GemmShape> gemm_shapes(std::uint64_t seed);

/// The shapes of gemm_shapes with at most `limit` multiplications.
std::vector<GemmShape> gemm_shapes(std::uint64_t seed, std::int64_t limit);

}  // namespace fusegrad::test
