// Calls a template lambda with the C++ type of a Dtype. For fusegrad's own sources; not installed.
#pragma once

#include <string>
#include <utility>

#include <fusegrad/autograd/dtype.h>
#include <fusegrad/autograd/error.h>

namespace fusegrad::detail {

/// Returns f.template operator()<T>() with T the element type of a floating-point `dtype`.
template <class F>
decltype(auto) visit_floating(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::f64: return std::forward<F>(f).template operator()<double>();
    case Dtype::f32: return std::forward<F>(f).template operator()<float>();
    case Dtype::bf16: return std::forward<F>(f).template operator()<bf16>();
    case Dtype::f16: return std::forward<F>(f).template operator()<f16>();
    default: throw DtypeError("a floating-point dtype is needed, got " + std::string(name_of(dtype)));
  }
}

/// As visit_floating, for all six dtypes.
template <class F>
decltype(auto) visit_any(Dtype dtype, F&& f) {
  if (dtype == Dtype::i32) return std::forward<F>(f).template operator()<std::int32_t>();
  if (dtype == Dtype::u8) return std::forward<F>(f).template operator()<std::uint8_t>();
  return visit_floating(dtype, std::forward<F>(f));
}

}  // namespace fusegrad::detail
