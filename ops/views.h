// Raw views that kernels take: a pointer, a dtype, extents. Kernels know neither tape nor tensor. Not installed.
#pragma once

#include <cstdint>

#include <fusegrad/autograd/tensor.h>

namespace fusegrad {

/// Read-only row-major matrix; element (i, j) is at i * ld + j.
struct ConstMatrix {
  const void* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t ld = 0;
  Dtype dtype = Dtype::f32;
};

/// Row-major matrix to be written.
struct Matrix {
  void* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t ld = 0;
  Dtype dtype = Dtype::f32;

  operator ConstMatrix() const { return {data, rows, cols, ld, dtype}; }  // NOLINT(google-explicit-constructor)
};

/// Read-only contiguous elements.
struct ConstVector {
  const void* data = nullptr;
  std::int64_t size = 0;
  Dtype dtype = Dtype::f32;
};

/// Contiguous elements to be written.
struct Vector {
  void* data = nullptr;
  std::int64_t size = 0;
  Dtype dtype = Dtype::f32;

  operator ConstVector() const { return {data, size, dtype}; }  // NOLINT(google-explicit-constructor)
};

/// A tensor as a matrix: the last axis is the columns, all others are the rows; a scalar is 1 x 1. A null view for an
/// empty handle.
inline ConstMatrix matrix_of(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  const std::int64_t cols = tensor.shape().rank() == 0 ? 1 : tensor.shape()[-1];
  std::int64_t rows = 1;
  for (int axis = 0; axis + 1 < tensor.shape().rank(); ++axis) rows *= tensor.shape()[axis];
  return {tensor.raw(), rows, cols, cols, tensor.dtype()};
}

inline Matrix mutable_matrix_of(Tensor& tensor) {
  const ConstMatrix view = matrix_of(tensor);
  return {tensor.defined() ? tensor.mutable_raw() : nullptr, view.rows, view.cols, view.ld, view.dtype};
}

inline ConstVector vector_of(const Tensor& tensor) {
  return {tensor.raw(), tensor.defined() ? tensor.size() : 0, tensor.dtype()};
}

inline Vector mutable_vector_of(Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.mutable_raw(), tensor.size(), tensor.dtype()};
}

// ReLU bit masks, in cuBLASLt's layout: the bit of element (i, j) is bit j % 8, least significant first, of byte
// i * mask_row_bytes(cols) + j / 8. A row takes a multiple of 128 bits; padding bits are written as 0 and never read.
// The bit is z >= 0: 1 at both zeros.

/// Bytes of one row of the mask of a matrix with `cols` columns.
constexpr std::int64_t mask_row_bytes(std::int64_t cols) { return (cols + 127) / 128 * 16; }

/// Bytes of a whole mask.
constexpr std::int64_t mask_bytes(std::int64_t rows, std::int64_t cols) { return rows * mask_row_bytes(cols); }

}  // namespace fusegrad
