#include "tests/support/masks.h"

#include <fmt/format.h>

#include <fusegrad/ops/views.h>

namespace fusegrad::test {
namespace {

/// Columns of a row of the mask, padding included.
std::int64_t padded(std::int64_t cols) { return mask_row_bytes(cols) * 8; }

}  // namespace

bool mask_bit(const std::uint8_t* mask, std::int64_t cols, std::int64_t i, std::int64_t j) {
  return (mask[i * mask_row_bytes(cols) + j / 8] >> (j % 8) & 1) != 0;
}

void flip_mask_bit(std::uint8_t* mask, std::int64_t cols, std::int64_t i, std::int64_t j) {
  mask[i * mask_row_bytes(cols) + j / 8] ^= static_cast<std::uint8_t>(1 << (j % 8));
}

std::vector<std::uint8_t> mask_of(const Values& z) {
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(mask_bytes(z.rows, z.cols)));
  for (std::int64_t i = 0; i < z.rows; ++i)
    for (std::int64_t j = 0; j < z.cols; ++j)
      if (z.at(i, j) >= 0) flip_mask_bit(mask.data(), z.cols, i, j);
  return mask;
}

void flip_padding(std::uint8_t* mask, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = cols; j < padded(cols); ++j) flip_mask_bit(mask, cols, i, j);
}

testing::AssertionResult is_mask_of(const std::uint8_t* mask, const Values& z) {
  for (std::int64_t i = 0; i < z.rows; ++i)
    for (std::int64_t j = 0; j < padded(z.cols); ++j) {
      const bool expected = j < z.cols && z.at(i, j) >= 0;
      if (mask_bit(mask, z.cols, i, j) != expected)
        return testing::AssertionFailure()
               << fmt::format("bit ({}, {}) of a [{}, {}] mask is {:d}", i, j, z.rows, z.cols, !expected);
    }
  return testing::AssertionSuccess();
}

Values selected(const Values& gradient, const std::vector<std::uint8_t>& mask) {
  Values result = gradient;
  for (std::int64_t i = 0; i < gradient.rows; ++i)
    for (std::int64_t j = 0; j < gradient.cols; ++j)
      if (!mask_bit(mask.data(), gradient.cols, i, j)) result.at(i, j) = 0;
  return result;
}

}  // namespace fusegrad::test
