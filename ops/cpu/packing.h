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

/// Elements of a panel of b, and of one of a that is packed by depth. Panels lie a little apart, because rows are
/// packed across all of them: at a distance of a power of two their lines would meet in the same few cache sets.
template <class T>
constexpr std::int64_t b_panel_size(std::int64_t depth) {
  return (depth + 2) * kBlockCols<T>;
}
template <class T>
constexpr std::int64_t a_panel_size(std::int64_t depth) {
  return (depth + 4) * kBlockRows;
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

/// Copies count < 16 elements, in pieces whose sizes the compiler knows.
template <class T>
void copy_few(const T* from, std::int64_t count, T* to) {
  for (const int piece : {8, 4, 2, 1}) {
    if ((count & piece) == 0) continue;
    for (int i = 0; i < piece; ++i) to[i] = from[i];
    from += piece;
    to += piece;
  }
}

/// a, transposed, as panels of [p][kBlockRows], the last filled up with zeros.
template <class T>
void pack_columns(const Factor& a, Range rows, Range depth, T* packed, T* buffer) {
  const std::int64_t panel = a_panel_size<T>(depth.size());
  const std::int64_t whole = rows.size() / kBlockRows * kBlockRows;
  if (whole != rows.size()) std::fill_n(packed + whole / kBlockRows * panel, panel, T{0});
  for (std::int64_t p = depth.begin; p < depth.end; ++p, packed += kBlockRows) {
    const T* row = kernels::load(a.data, a.dtype, p * a.ld + rows.begin, rows.size(), buffer);
    T* to = packed;
    for (std::int64_t i = 0; i < whole; i += kBlockRows, to += panel) std::memcpy(to, row + i, kBlockRows * sizeof(T));
    copy_few(row + whole, rows.size() - whole, to);
  }
}

/// sums[i] += Σ_p a(i, p) of a block that pack_columns has packed.
template <class T>
void add_packed_rows(const T* packed, std::int64_t rows, std::int64_t depth, T* sums) {
  for (std::int64_t i = 0; i < rows; i += kBlockRows, packed += a_panel_size<T>(depth)) {
    T block[kBlockRows] = {};
    for (std::int64_t p = 0; p < depth; ++p)
      for (int lane = 0; lane < kBlockRows; ++lane) block[lane] += packed[p * kBlockRows + lane];
    const std::int64_t count = std::min<std::int64_t>(kBlockRows, rows - i);
    for (std::int64_t lane = 0; lane < count; ++lane) sums[i + lane] += block[lane];
  }
}

/// b, untransposed, as panels of [p][registers of the panel].
template <class T>
void pack_panels(const Factor& b, Range cols, Range depth, T* packed, T* buffer) {
  const std::int64_t whole = cols.size() / kBlockCols<T> * kBlockCols<T>;
  const std::int64_t rest = cols.size() - whole;
  const std::int64_t rest_width = panel_registers<T>(rest) * kLanes<T>;
  for (std::int64_t p = 0; p < depth.size(); ++p) {
    const T* row = kernels::load(b.data, b.dtype, (depth.begin + p) * b.ld + cols.begin, cols.size(), buffer);
    T* panel = packed;
    for (std::int64_t j = 0; j < whole; j += kBlockCols<T>, panel += b_panel_size<T>(depth.size()))
      std::memcpy(panel + p * kBlockCols<T>, row + j, kBlockCols<T> * sizeof(T));
    if (rest == 0) continue;
    T* to = panel + p * rest_width;
    std::fill(std::copy_n(row + whole, rest, to), to + rest_width, T{0});
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
  for (std::int64_t j = cols.begin; j < cols.end; j += kBlockCols<T>, packed += b_panel_size<T>(depth.size())) {
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
