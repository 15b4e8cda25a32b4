#include "tests/support/guarded.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/autograd/narrow.h>

namespace fusegrad::test {
namespace {

constexpr std::size_t kCanary = 256;
constexpr std::size_t kAlignment = 256;
constexpr std::byte kPattern{0xA5};

/// Index of the first byte in `memory` that is aligned and has a canary before it.
std::size_t aligned_begin(const std::vector<std::byte>& memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data()) + kCanary;
  return kCanary + (kAlignment - address % kAlignment) % kAlignment;
}

testing::AssertionResult untouched(const std::vector<std::byte>& memory, std::size_t begin, std::size_t end,
                                   std::ptrdiff_t origin) {
  const auto first = memory.begin() + static_cast<std::ptrdiff_t>(begin);
  const auto last = memory.begin() + static_cast<std::ptrdiff_t>(end);
  const auto changed = std::find_if(first, last, [](std::byte value) { return value != kPattern; });
  if (changed == last) return testing::AssertionSuccess();
  return testing::AssertionFailure() << fmt::format("byte {} from the first element, outside the matrix, was changed",
                                                    changed - memory.begin() - origin);
}

}  // namespace

GuardedMatrix::GuardedMatrix(Dtype dtype, std::int64_t rows, std::int64_t cols, Layout layout)
    : dtype_(dtype), rows_(rows), cols_(cols), ld_(cols + layout.padding) {
  const std::size_t offset = static_cast<std::size_t>(layout.offset) * size_of(dtype);
  memory_.assign(2 * kCanary + kAlignment + offset + static_cast<std::size_t>(rows * ld_) * size_of(dtype), kPattern);
  begin_ = aligned_begin(memory_) + offset;
  poison();
}

GuardedMatrix::GuardedMatrix(Dtype dtype, const Values& values, Layout layout)
    : GuardedMatrix(dtype, values.rows, values.cols, layout) {
  fill(values);
}

std::size_t GuardedMatrix::position(std::int64_t row) const {
  return begin_ + static_cast<std::size_t>(row * ld_) * size_of(dtype_);
}

void GuardedMatrix::fill(const Values& values) {
  detail::visit_floating(dtype_, [&]<class T>() {
    for (std::int64_t i = 0; i < rows_; ++i)
      for (std::int64_t j = 0; j < cols_; ++j) {
        const T element = detail::narrow<T>(values.at(i, j));
        std::memcpy(memory_.data() + position(i) + static_cast<std::size_t>(j) * sizeof(T), &element, sizeof(T));
      }
  });
}

void GuardedMatrix::poison() {
  for (std::int64_t i = 0; i < rows_; ++i)
    std::memset(memory_.data() + position(i), 0xFF, static_cast<std::size_t>(cols_) * size_of(dtype_));
}

Values GuardedMatrix::values() const {
  Values result(rows_, cols_);
  detail::visit_floating(dtype_, [&]<class T>() {
    for (std::int64_t i = 0; i < rows_; ++i)
      for (std::int64_t j = 0; j < cols_; ++j) {
        T element;
        std::memcpy(&element, memory_.data() + position(i) + static_cast<std::size_t>(j) * sizeof(T), sizeof(T));
        result.at(i, j) = static_cast<double>(element);
      }
  });
  return result;
}

Matrix GuardedMatrix::matrix() { return {memory_.data() + begin_, rows_, cols_, ld_, dtype_}; }
ConstMatrix GuardedMatrix::matrix() const { return {memory_.data() + begin_, rows_, cols_, ld_, dtype_}; }
Vector GuardedMatrix::vector() { return {memory_.data() + begin_, cols_, dtype_}; }
ConstVector GuardedMatrix::vector() const { return {memory_.data() + begin_, cols_, dtype_}; }

std::vector<std::byte> GuardedMatrix::bytes() const {
  std::vector<std::byte> result;
  for (std::int64_t i = 0; i < rows_; ++i) {
    const std::byte* row = memory_.data() + position(i);
    result.insert(result.end(), row, row + static_cast<std::size_t>(cols_) * size_of(dtype_));
  }
  return result;
}

testing::AssertionResult GuardedMatrix::intact() const {
  const auto origin = static_cast<std::ptrdiff_t>(begin_);
  std::size_t begin = 0;
  for (std::int64_t i = 0; i < rows_; ++i) {
    if (auto result = untouched(memory_, begin, position(i), origin); !result) return result;
    begin = position(i) + static_cast<std::size_t>(cols_) * size_of(dtype_);
  }
  return untouched(memory_, begin, memory_.size(), origin);
}

std::span<std::byte> GuardedMatrix::block() {
  const std::size_t begin = aligned_begin(memory_) - kCanary;
  return std::span(memory_).subspan(begin);
}

GuardedBytes::GuardedBytes(std::int64_t size, std::uint8_t fill) : size_(size) {
  memory_.assign(2 * kCanary + kAlignment + static_cast<std::size_t>(size), kPattern);
  begin_ = aligned_begin(memory_);
  std::memset(data(), fill, static_cast<std::size_t>(size));
}

testing::AssertionResult GuardedBytes::intact() const {
  const auto origin = static_cast<std::ptrdiff_t>(begin_);
  if (auto result = untouched(memory_, 0, begin_, origin); !result) return result;
  return untouched(memory_, begin_ + static_cast<std::size_t>(size_), memory_.size(), origin);
}

std::span<std::byte> GuardedBytes::block() { return std::span(memory_).subspan(begin_ - kCanary); }

}  // namespace fusegrad::test
