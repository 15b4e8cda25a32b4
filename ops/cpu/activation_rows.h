// An activation, or its gradient, on pieces of rows: what the epilogues of products and the standalone kernels share.
// Not installed.
#pragma once

#include <algorithm>

#include <fusegrad/ops/activation_functions.h>
#include <fusegrad/ops/cpu/mask_rows.h>
#include <fusegrad/ops/views.h>

namespace fusegrad::detail {

/// to = a + b, or a if b is null; to may be a or b.
template <class Acc>
void add_row(const Acc* a, const Acc* b, std::int64_t n, Acc* to) {
  if (!b) {
    if (to != a) std::copy_n(a, n, to);
    return;
  }
  FUSEGRAD_INDEPENDENT
  for (std::int64_t j = 0; j < n; ++j) to[j] = a[j] + b[j];
}

template <class Gelu, class Acc>
void gelu_row(const Acc* z, std::int64_t n, Acc* y) {
  FUSEGRAD_INDEPENDENT
  for (std::int64_t j = 0; j < n; ++j) y[j] = Gelu::value(z[j]);
}

template <class Gelu, class Acc>
void gelu_gradient_row(const Acc* dy, const Acc* z, std::int64_t n, Acc* dz) {
  FUSEGRAD_INDEPENDENT
  for (std::int64_t j = 0; j < n; ++j) dz[j] = dy[j] * Gelu::slope(z[j]);
}

/// y = act(z + b) with its mask or pre-activation, computed in Acc and rounded once.
template <class Acc>
struct RowActivation {
  Activation activation;
  const Acc* b;  // for all columns, or null
  Matrix y;
  std::uint8_t* mask;     // relu; or null
  Matrix pre_activation;  // gelu; or none

  /// Columns [col, col + n) of row i, col a multiple of 128; `buffer`, which may be z, is for n elements.
  void apply(std::int64_t i, std::int64_t col, std::int64_t n, const Acc* z, Acc* buffer) const {
    const Acc* bias = b ? b + col : nullptr;
    const std::int64_t at = i * y.ld + col;
    Acc* out = kernels::destination(y.data, y.dtype, at, buffer);
    if (activation == Activation::none) {
      add_row(z, bias, n, out);
    } else if (activation == Activation::relu) {
      relu_row(z, bias, n, out, mask_row(i, col, n));
    } else {
      const std::int64_t saved_at = i * pre_activation.ld + col;
      Acc* saved = buffer;
      if (pre_activation.data)
        saved = kernels::destination(pre_activation.data, pre_activation.dtype, saved_at, buffer);
      add_row(z, bias, n, saved);
      if (pre_activation.data) kernels::store(saved, pre_activation.data, pre_activation.dtype, saved_at, n);
      if (activation == Activation::gelu_tanh) gelu_row<GeluTanh>(saved, n, out);
      if (activation == Activation::gelu_erf) gelu_row<GeluErf>(saved, n, out);
    }
    kernels::store(out, y.data, y.dtype, at, n);
  }

 private:
  /// Where the piece's bits go, with the padding after the last column cleared; null without mask.
  std::uint8_t* mask_row(std::int64_t i, std::int64_t col, std::int64_t n) const {
    if (!mask) return nullptr;
    std::uint8_t* row = mask + i * mask_row_bytes(y.cols);
    if (col + n == y.cols) std::fill(row + (y.cols + 7) / 8, row + mask_row_bytes(y.cols), std::uint8_t{0});
    return row + col / 8;
  }
};

/// act'(saved) ∘ dy.
template <class Acc>
struct RowGradient {
  Activation activation;
  const std::uint8_t* mask;    // relu
  ConstMatrix pre_activation;  // gelu
  std::int64_t cols;

  /// Columns [col, col + n) of row i, col a multiple of 128; dz may be dy; `buffer` is for n elements.
  void apply(std::int64_t i, std::int64_t col, std::int64_t n, const Acc* dy, Acc* dz, Acc* buffer) const {
    if (activation == Activation::none) {
      add_row<Acc>(dy, nullptr, n, dz);
    } else if (activation == Activation::relu) {
      select_row(mask + i * mask_row_bytes(cols) + col / 8, dy, n, dz);
    } else {
      const Acc* z = kernels::load(pre_activation.data, pre_activation.dtype, i * pre_activation.ld + col, n, buffer);
      if (activation == Activation::gelu_tanh) gelu_gradient_row<GeluTanh>(dy, z, n, dz);
      if (activation == Activation::gelu_erf) gelu_gradient_row<GeluErf>(dy, z, n, dz);
    }
  }
};

}  // namespace fusegrad::detail
