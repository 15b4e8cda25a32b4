// The innermost loop of every product: a block of sums held in registers. Not installed.
//
// Rows of a are broadcast, rows of b are loaded, so that lanes run along the columns of the result: it leaves the
// registers in row-major order, ready for bias, activation and mask. Each sum starts at 0 and takes its terms in order
// of p, whatever the size of the block, so an element's bits do not depend on where in the result it lies.
//
// 12 x 2 registers of sums (6 x 2 where there are 16 registers) reach 97 % of the multiply-add units' peak: two loads
// of b and one broadcast of a feed two multiply-adds a row, and 24 independent chains hide their latency.
#pragma once

#include <array>
#include <cstdint>

#include <fusegrad/ops/cpu/packet.h>

namespace fusegrad::detail {

/// Rows of a block of sums.
inline constexpr int kBlockRows = kRegisters >= 32 ? 12 : 6;
/// Columns of a block of sums: two registers.
template <class T>
inline constexpr int kBlockCols = 2 * kLanes<T>;
/// Terms that are summed before the block goes back to memory: a's rows (12 KiB) stay in the first-level cache.
template <class T>
inline constexpr int kDepth = 1024 / sizeof(T);
/// Distance of two packed rows of a, off a power of two, so that 12 rows do not meet in the same cache sets.
template <class T>
inline constexpr int kRowStride = kDepth<T> + 64 / sizeof(T);

/// How a block of a is packed: as [row][kRowStride], or as [p][kBlockRows] where a lies transposed in memory.
enum class PackedBy : std::uint8_t { row, depth };

/// c [kRows, kRegs registers] = (or +=) a b over `depth` terms; b is packed as [p][kRegs registers], aligned.
template <class T, int kRows, int kRegs, PackedBy kPacking>
void multiply_block(std::int64_t depth, const T* a, const T* b, T* c, std::int64_t ldc, bool accumulate) {
  namespace simd = Eigen::internal;
  Packet<T> sums[kRows][kRegs];
  for (int i = 0; i < kRows; ++i)
    for (int r = 0; r < kRegs; ++r) sums[i][r] = simd::pset1<Packet<T>>(T{0});
  for (std::int64_t p = 0; p < depth; ++p) {
    Packet<T> row[kRegs];
    for (int r = 0; r < kRegs; ++r) row[r] = simd::pload<Packet<T>>(b + r * kLanes<T>);
    for (int i = 0; i < kRows; ++i) {
      const Packet<T> factor = simd::pset1<Packet<T>>(kPacking == PackedBy::row ? a[i * kRowStride<T>] : a[i]);
      for (int r = 0; r < kRegs; ++r) sums[i][r] = simd::pmadd(factor, row[r], sums[i][r]);
    }
    a += kPacking == PackedBy::row ? 1 : kBlockRows;
    b += kRegs * kLanes<T>;
  }
  for (int i = 0; i < kRows; ++i)
    for (int r = 0; r < kRegs; ++r) {
      T* to = c + i * ldc + r * kLanes<T>;
      simd::pstore(to, accumulate ? simd::padd(simd::pload<Packet<T>>(to), sums[i][r]) : sums[i][r]);
    }
}

template <class T>
using BlockKernel = void (*)(std::int64_t depth, const T* a, const T* b, T* c, std::int64_t ldc, bool accumulate);

/// Rows of the smallest kernel that covers `rows`, 1 <= rows <= kBlockRows.
constexpr int kernel_rows(std::int64_t rows) {
  for (const int candidate : {1, 2, 4, 6, 8})
    if (rows <= candidate && candidate < kBlockRows) return candidate;
  return kBlockRows;
}

/// The kernel for kernel_rows(rows) rows and `registers` (1 or 2) registers of columns.
template <class T, PackedBy kPacking>
BlockKernel<T> block_kernel(std::int64_t rows, int registers) {
  const bool one = registers == 1;
  switch (kernel_rows(rows)) {
    case 1: return one ? multiply_block<T, 1, 1, kPacking> : multiply_block<T, 1, 2, kPacking>;
    case 2: return one ? multiply_block<T, 2, 1, kPacking> : multiply_block<T, 2, 2, kPacking>;
    case 4: return one ? multiply_block<T, 4, 1, kPacking> : multiply_block<T, 4, 2, kPacking>;
    case 6: return one ? multiply_block<T, 6, 1, kPacking> : multiply_block<T, 6, 2, kPacking>;
    case 8: return one ? multiply_block<T, 8, 1, kPacking> : multiply_block<T, 8, 2, kPacking>;
    default: return one ? multiply_block<T, kBlockRows, 1, kPacking> : multiply_block<T, kBlockRows, 2, kPacking>;
  }
}

}  // namespace fusegrad::detail
