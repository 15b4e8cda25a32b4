// Copies blocks of the factors of a product into the order in which multiply_block reads them, as Acc. Not installed.
#pragma once

#include <algorithm>
#include <cstring>

#include <fusegrad/ops/cpu/convert.h>
#include <fusegrad/ops/cpu/micro_kernel.h>
#include <fusegrad/ops/cpu/tasks.h>
#include <fusegrad/ops/cpu/tiled_product.h>

namespace fusegrad::detail {

/// Registers (1 or 2) of a panel with that many columns left.
template <class T>
int panel_registers(std::int64_t cols_left) {
  return cols_left > kLanes<T> ? 2 : 1;
}

/// a, untransposed, as rows of kRowStride. Rows that only fill up a kernel are zeros.
template <class T>
void pack_rows(const Factor& a, Range rows, Range depth, T* packed) {
  for (std::int64_t i = rows.begin; i < rows.end; ++i, packed += kRowStride<T>) {
    const T* row = kernels::load(a.data, a.dtype, i * a.ld + depth.begin, depth.size(), packed);
    if (row != packed) std::copy_n(row, depth.size(), packed);
  }
  const std::int64_t last = (rows.size() - 1) % kBlockRows + 1;
  for (std::int64_t i = last; i < kernel_rows(last); ++i, packed += kRowStride<T>)
    std::fill_n(packed, depth.size(), T{0});
}

/// a, transposed, as panels of [p][kBlockRows]. `sums`, if not null: sums[i] += Σ_p a(i, p).
template <class T>
void pack_columns(const Factor& a, Range rows, Range depth, T* packed, T* __restrict sums, T* buffer) {
  const std::int64_t panel = depth.size() * kBlockRows;
  for (std::int64_t p = depth.begin; p < depth.end; ++p, packed += kBlockRows) {
    const T* __restrict row = kernels::load(a.data, a.dtype, p * a.ld + rows.begin, rows.size(), buffer);
    if (sums) {
      for (std::int64_t i = 0; i < rows.size(); ++i) sums[i] += row[i];
    }
    T* to = packed;
    std::int64_t i = 0;
    for (; i + kBlockRows <= rows.size(); i += kBlockRows, to += panel)
      std::memcpy(to, row + i, kBlockRows * sizeof(T));
    if (i < rows.size()) std::fill(std::copy(row + i, row + rows.size(), to), to + kBlockRows, T{0});
  }
}

/// b, untransposed, as panels of [p][registers of the panel].
template <class T>
void pack_panels(const Factor& b, Range cols, Range depth, T* packed, T* buffer) {
  for (std::int64_t p = 0; p < depth.size(); ++p) {
    const T* row = kernels::load(b.data, b.dtype, (depth.begin + p) * b.ld + cols.begin, cols.size(), buffer);
    T* panel = packed;
    std::int64_t j = 0;
    for (; j + kBlockCols<T> <= cols.size(); j += kBlockCols<T>, panel += depth.size() * kBlockCols<T>)
      std::memcpy(panel + p * kBlockCols<T>, row + j, kBlockCols<T> * sizeof(T));
    if (j == cols.size()) continue;
    const std::int64_t width = panel_registers<T>(cols.size() - j) * kLanes<T>;
    T* to = panel + p * width;
    std::fill(std::copy(row + j, row + cols.size(), to), to + width, T{0});
  }
}

/// kLanes columns of transposed b, one from each of `rows`, as lanes of a panel whose rows are `width` apart.
template <class T>
void transpose_into_panel(const T* const (&rows)[kLanes<T>], std::int64_t depth, T* panel, std::int64_t width) {
  namespace simd = Eigen::internal;
  std::int64_t p = 0;
  for (; p + kLanes<T> <= depth; p += kLanes<T>) {
    simd::PacketBlock<Packet<T>, kLanes<T>> block;
    for (int i = 0; i < kLanes<T>; ++i) block.packet[i] = simd::ploadu<Packet<T>>(rows[i] + p);
    simd::ptranspose(block);
    for (int i = 0; i < kLanes<T>; ++i) simd::pstore(panel + (p + i) * width, block.packet[i]);
  }
  for (; p < depth; ++p)
    for (int i = 0; i < kLanes<T>; ++i) panel[p * width + i] = rows[i][p];
}

/// Elements of the buffer that pack_transposed_panels converts through.
template <class T>
inline constexpr std::int64_t kTransposeBuffer = kLanes<T>* kDepth<T>;

/// b, transposed, as panels of [p][registers of the panel].
template <class T>
void pack_transposed_panels(const Factor& b, Range cols, Range depth, T* packed, T* buffer) {
  for (std::int64_t j = cols.begin; j < cols.end; j += kBlockCols<T>, packed += depth.size() * kBlockCols<T>) {
    const int registers = panel_registers<T>(cols.end - j);
    for (int r = 0; r < registers; ++r) {
      const T* rows[kLanes<T>];
      for (int lane = 0; lane < kLanes<T>; ++lane) {
        const std::int64_t column = j + r * kLanes<T> + lane;
        T* own = buffer + lane * kDepth<T>;
        if (column < cols.end) {
          rows[lane] = kernels::load(b.data, b.dtype, column * b.ld + depth.begin, depth.size(), own);
        } else {
          std::fill_n(own, depth.size(), T{0});
          rows[lane] = own;
        }
      }
      transpose_into_panel<T>(rows, depth.size(), packed + r * kLanes<T>, registers * kLanes<T>);
    }
  }
}

template <class T>
void pack_b(const Factor& b, Range cols, Range depth, T* packed, T* buffer) {
  if (b.transposed) {
    pack_transposed_panels(b, cols, depth, packed, buffer);
  } else {
    pack_panels(b, cols, depth, packed, buffer);
  }
}

}  // namespace fusegrad::detail
