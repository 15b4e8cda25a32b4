// The activations that fused ops know.
#pragma once

#include <cstdint>
#include <string_view>

namespace fusegrad {

/// relu is max(z, 0), with derivative 1 where z >= 0 (at both zeros too) and NaN where z is NaN. gelu_tanh is
/// 0.5 z (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))); gelu_erf is z Phi(z). The two forms of GELU differ by up to 4.7e-4
/// and one never stands in for the other.
enum class Activation : std::uint8_t { none, relu, gelu_tanh, gelu_erf };

constexpr std::string_view name_of(Activation activation) {
  switch (activation) {
    case Activation::none: return "none";
    case Activation::relu: return "relu";
    case Activation::gelu_tanh: return "gelu_tanh";
    case Activation::gelu_erf: return "gelu_erf";
  }
  return "?";
}

}  // namespace fusegrad
