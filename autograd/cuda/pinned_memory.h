// Page-locked host memory, which a GPU copies from and to while the host goes on. Not installed.
#pragma once

#include <cstddef>
#include <utility>

namespace fusegrad::detail {

/// An owned block of page-locked memory. Making one costs milliseconds: make it once and reuse it.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  /// Errors: OutOfMemoryError; CudaError.
  explicit PinnedMemory(std::size_t bytes);
  ~PinnedMemory();
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace fusegrad::detail
