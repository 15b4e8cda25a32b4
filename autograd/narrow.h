// Conversion of double to a narrower type with a single rounding. For fusegrad's own sources; not installed.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include <fusegrad/autograd/dtype.h>

namespace fusegrad::detail {

/// `value` rounded to `To`, to nearest even, once. Going through float by its own rounding would round twice; rounding
/// to odd on the way keeps what the second rounding needs to know. Callable from device code.
template <class To>
constexpr To narrow(double value) {
  if constexpr (std::is_same_v<To, double>) {
    return value;
  } else if constexpr (std::is_same_v<To, float>) {
    return static_cast<float>(value);
  } else {
    float odd = static_cast<float>(value);
    const bool is_nan = value != value;
    if (!is_nan && static_cast<double>(odd) != value) {
      auto bits = std::bit_cast<std::uint32_t>(odd);
      const bool too_small = (value > 0) == (static_cast<double>(odd) < value);
      if ((bits & 1u) == 0) bits += too_small ? 1u : ~0u;
      odd = std::bit_cast<float>(bits);
    }
    return To(odd);
  }
}

}  // namespace fusegrad::detail
