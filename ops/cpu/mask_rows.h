// Rows of ReLU and of its bit mask (layout in views.h), 32 elements at a time and without a branch. Not installed.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include <fusegrad/ops/cpu/convert.h>

namespace fusegrad::detail {

inline constexpr std::int64_t kMaskChunk = 32;

/// The lowest bits of eight bytes that are 0 or 1, as one byte, the first byte's lowest.
inline std::uint8_t gather_bits(const std::uint8_t* bytes) {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  // Byte i times 2^(56 - 7 i) puts its bit at 56 + i; no two of the 64 partial products meet, so nothing carries.
  return static_cast<std::uint8_t>(word * 0x0102040810204080u >> 56);
}

/// Eight bytes, of which byte i is not 0 where bit i is 1.
inline void spread_bits(std::uint8_t bits, std::uint8_t* bytes) {
  const std::uint64_t word = bits * 0x0101010101010101u & 0x8040201008040201u;
  std::memcpy(bytes, &word, sizeof word);
}

/// One chunk of relu_row.
template <class Acc>
void relu_chunk(const Acc* z, const Acc* b, Acc* y, std::uint8_t* mask) {
  std::uint8_t open[kMaskChunk];
  // Two loops, because a test of b inside one keeps it from being vectorised.
  if (b) {
    FUSEGRAD_INDEPENDENT
    for (std::int64_t j = 0; j < kMaskChunk; ++j) {
      const Acc value = z[j] + b[j];
      y[j] = value < 0 ? Acc{0} : value;
      open[j] = value >= 0 ? 1 : 0;
    }
  } else {
    FUSEGRAD_INDEPENDENT
    for (std::int64_t j = 0; j < kMaskChunk; ++j) {
      const Acc value = z[j];
      y[j] = value < 0 ? Acc{0} : value;
      open[j] = value >= 0 ? 1 : 0;
    }
  }
  if (!mask) return;
  for (std::int64_t byte = 0; byte < kMaskChunk / 8; ++byte) mask[byte] = gather_bits(open + 8 * byte);
}

/// y = max(z + b, 0), NaN where that is NaN; y may be z; b may be null. `mask`, if not null: ceil(n / 8) bytes of bits
/// z + b >= 0, the bits after the last column 0.
template <class Acc>
void relu_row(const Acc* z, const Acc* b, std::int64_t n, Acc* y, std::uint8_t* mask) {
  std::int64_t j = 0;
  for (; j + kMaskChunk <= n; j += kMaskChunk)
    relu_chunk(z + j, b ? b + j : nullptr, y + j, mask ? mask + j / 8 : nullptr);
  if (j == n) return;
  Acc rest_z[kMaskChunk];
  Acc rest_b[kMaskChunk] = {};
  std::uint8_t rest_mask[kMaskChunk / 8];
  std::fill(std::copy(z + j, z + n, rest_z), rest_z + kMaskChunk, Acc{-1});
  if (b) std::copy(b + j, b + n, rest_b);
  relu_chunk(rest_z, rest_b, rest_z, rest_mask);
  std::copy_n(rest_z, n - j, y + j);
  if (mask) std::copy_n(rest_mask, (n - j + 7) / 8, mask + j / 8);
}

/// One chunk of select_row.
template <class Acc>
void select_chunk(const std::uint8_t* mask, const Acc* values, Acc* selected) {
  std::uint8_t open[kMaskChunk];
  for (std::int64_t byte = 0; byte < kMaskChunk / 8; ++byte) spread_bits(mask[byte], open + 8 * byte);
  FUSEGRAD_INDEPENDENT
  for (std::int64_t j = 0; j < kMaskChunk; ++j) selected[j] = open[j] != 0 ? values[j] : Acc{0};
}

/// selected = values where the mask's bit is 1, else +0: an infinity or a NaN does not survive a 0 bit. May be values.
template <class Acc>
void select_row(const std::uint8_t* mask, const Acc* values, std::int64_t n, Acc* selected) {
  std::int64_t j = 0;
  for (; j + kMaskChunk <= n; j += kMaskChunk) select_chunk(mask + j / 8, values + j, selected + j);
  if (j == n) return;
  Acc rest[kMaskChunk] = {};
  std::uint8_t rest_mask[kMaskChunk / 8] = {};
  std::copy(values + j, values + n, rest);
  std::copy_n(mask + j / 8, (n - j + 7) / 8, rest_mask);
  select_chunk(rest_mask, rest, rest);
  std::copy_n(rest, n - j, selected + j);
}

}  // namespace fusegrad::detail
