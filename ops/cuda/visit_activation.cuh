// The activation of a kernel's arguments as a template argument. Not installed.
#pragma once

#include <fusegrad/ops/activation_functions.h>
#include <fusegrad/ops/activation_kind.h>

namespace fusegrad::kernels {

/// Calls f.template operator()<activation>().
template <class F>
void visit_activation(Activation activation, F&& f) {
  switch (activation) {
    case Activation::none: return f.template operator()<Activation::none>();
    case Activation::relu: return f.template operator()<Activation::relu>();
    case Activation::gelu_tanh: return f.template operator()<Activation::gelu_tanh>();
    case Activation::gelu_erf: return f.template operator()<Activation::gelu_erf>();
  }
}

constexpr bool is_gelu(Activation activation) {
  return activation == Activation::gelu_tanh || activation == Activation::gelu_erf;
}

/// Bits of a mask's row from `column` on, the lowest first: as many as the byte holds.
__device__ inline unsigned mask_bits(const std::uint8_t* row, std::int64_t column) {
  return static_cast<unsigned>(row[column / 8]) >> (column % 8);
}

}  // namespace fusegrad::kernels
