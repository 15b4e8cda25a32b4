#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/shape.h>

namespace fusegrad {

Shape::Shape(std::initializer_list<std::int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}

Shape::Shape(std::span<const std::int64_t> extents) {
  detail::require<ShapeError>(extents.size() <= kMaxRank, "shape: at most {} axes, got {}", kMaxRank, extents.size());
  for (const std::int64_t extent : extents) {
    detail::require<ShapeError>(extent >= 0, "shape: extents must not be negative, got {}", extent);
    extents_[rank_++] = extent;
  }
  // An extent of 0 makes the size 0 however large the others are, but the others must not overflow on their own:
  // kernels multiply partial extents.
  std::int64_t nonzero = 1;
  for (const std::int64_t extent : extents) {
    if (extent == 0) {
      size_ = 0;
    } else {
      detail::require<ShapeError>(!__builtin_mul_overflow(nonzero, extent, &nonzero),
                                  "shape: the number of elements of {} does not fit 64 bits", *this);
    }
  }
  if (size_ != 0) size_ = nonzero;
}

std::int64_t Shape::operator[](int axis) const {
  const int index = axis < 0 ? axis + rank_ : axis;
  detail::require<ShapeError>(index >= 0 && index < rank_, "shape: {} has no axis {}", *this, axis);
  return extents_[index];
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int axis = 0; axis < rank_; ++axis) text += detail::format("{}{}", axis ? ", " : "", extents_[axis]);
  return text + "]";
}

}  // namespace fusegrad
