// The extents of a tensor: up to four axes, row-major, any of them possibly 0.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace fusegrad {

/// Extents of a row-major tensor of rank 0 (a scalar) to 4.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  /// Rank 0: one element.
  Shape() = default;
  /// Errors: ShapeError if there are more than four axes, one is negative, or the number of elements overflows int64.
  Shape(std::initializer_list<std::int64_t> extents);
  explicit Shape(std::span<const std::int64_t> extents);

  int rank() const { return rank_; }
  /// Extent of `axis`; a negative axis counts from the last. Errors: ShapeError if there is no such axis.
  std::int64_t operator[](int axis) const;
  /// Number of elements.
  std::int64_t size() const { return size_; }
  std::span<const std::int64_t> extents() const { return {extents_.data(), static_cast<std::size_t>(rank_)}; }
  /// "[64, 784]", and "[]" for a scalar.
  std::string to_string() const;

  bool operator==(const Shape&) const = default;

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  std::int64_t size_ = 1;
  int rank_ = 0;
};

}  // namespace fusegrad
