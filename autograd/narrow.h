// Conversion of double to a narrower type with a single rounding. For fusegrad's own sources; not installed.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include <fusegrad/autograd/dtype.h>

namespace fusegrad::detail {

/// `value` rounded to `To`, to nearest even, once. Going through float by its own rounding would round twice; rounding
/// to odd on the way keeps what the second rounding needs to know.
template <class To>
To narrow(double value) {
  if constexpr (std::is_same_v<To, double>) {
    return value;
  } else if constexpr (std::is_same_v<To, float>) {
    return static_cast<float>(value);
  } else {
    float odd = static_cast<float>(value);
    if (!std::isnan(value) && static_cast<double>(odd) != value) {
      auto bits = std::bit_cast<std::uint32_t>(odd);
      if ((bits & 1u) == 0) bits += std::fabs(static_cast<double>(odd)) < std::fabs(value) ? 1u : ~0u;
      odd = std::bit_cast<float>(bits);
    }
    return To(odd);
  }
}

}  // namespace fusegrad::detail
