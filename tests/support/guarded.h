// Memory that tells when a kernel writes where it must not, or not where it must.
//
// A guarded block has 256-byte canaries on both sides and in the padding of each row; its elements start as NaN (all
// bytes 0xFF), so that an element which was not written fails every comparison.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/values.h"

#include <fusegrad/ops/views.h>

namespace fusegrad::test {

struct Layout {
  std::int64_t padding = 0;  ///< elements between the end of a row and the next: ld = cols + padding
  std::int64_t offset = 0;   ///< elements by which the first is off a 256-byte boundary
};

/// A row-major matrix of a floating-point dtype.
class GuardedMatrix {
 public:
  GuardedMatrix(Dtype dtype, std::int64_t rows, std::int64_t cols, Layout layout = {});
  /// Holds `values`, each rounded to `dtype`.
  GuardedMatrix(Dtype dtype, const Values& values, Layout layout = {});

  void fill(const Values& values);
  /// Makes every element NaN again.
  void poison();

  Values values() const;
  Matrix matrix();
  ConstMatrix matrix() const;
  /// The matrix of one row as a vector.
  Vector vector();
  ConstVector vector() const;
  Dtype dtype() const { return dtype_; }
  /// The bytes of all elements, in order: for comparisons bit by bit.
  std::vector<std::byte> bytes() const;

  /// Success if no byte around or between the rows has changed.
  testing::AssertionResult intact() const;
  /// Elements and canaries, from an address that is a multiple of 256: what a copy on another device has to hold.
  std::span<std::byte> block();

 private:
  std::size_t position(std::int64_t row) const;

  Dtype dtype_;
  std::int64_t rows_;
  std::int64_t cols_;
  std::int64_t ld_;
  std::size_t begin_;  // of the elements in memory_
  std::vector<std::byte> memory_;
};

/// Plain bytes, for masks.
class GuardedBytes {
 public:
  GuardedBytes(std::int64_t size, std::uint8_t fill);

  std::uint8_t* data() { return reinterpret_cast<std::uint8_t*>(memory_.data() + begin_); }
  const std::uint8_t* data() const { return reinterpret_cast<const std::uint8_t*>(memory_.data() + begin_); }
  std::int64_t size() const { return size_; }
  std::vector<std::uint8_t> copy() const { return {data(), data() + size_}; }
  testing::AssertionResult intact() const;
  /// As GuardedMatrix::block.
  std::span<std::byte> block();

 private:
  std::int64_t size_;
  std::size_t begin_;
  std::vector<std::byte> memory_;
};

}  // namespace fusegrad::test
