// Carves a thread's scratch memory into arrays. Not installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fusegrad::detail {

inline constexpr std::size_t kScratchAlignment = 64;

constexpr std::size_t aligned_bytes(std::size_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

/// Bytes of arrays of T of these lengths, as a Scratch hands them out.
template <class T, class... Counts>
constexpr std::size_t scratch_bytes(Counts... counts) {
  return (aligned_bytes(static_cast<std::size_t>(counts) * sizeof(T)) + ...);
}

/// Hands out arrays, uninitialised and aligned, from memory that is large enough.
class Scratch {
 public:
  explicit Scratch(void* memory) : next_(static_cast<std::byte*>(memory)) {}

  template <class T>
  T* take(std::int64_t count) {
    T* array = reinterpret_cast<T*>(next_);
    next_ += aligned_bytes(static_cast<std::size_t>(count) * sizeof(T));
    return array;
  }

 private:
  std::byte* next_;
};

}  // namespace fusegrad::detail
