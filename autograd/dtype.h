// Element types of tensors, and the two 16-bit floating-point types that C++20 lacks.
//
// `bf16` and `f16` are storage types: they convert to and from float and have no arithmetic of their own. Conversion
// from float rounds to nearest, ties to even; overflow gives infinity; a NaN stays a NaN.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace fusegrad {

/// bfloat16: 1 sign, 8 exponent, 7 mantissa bits. Unit roundoff 2^-8.
struct bf16 {
  std::uint16_t bits = 0;

  constexpr bf16() = default;
  constexpr explicit bf16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    // Adding 0x7fff plus the lowest kept bit rounds to nearest even; a NaN must not be rounded, or it may wrap to -0.
    const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const std::uint32_t quiet_nan = (u >> 16) | 0x40u;
    bits = static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
  }
  constexpr operator float() const {  // NOLINT(google-explicit-constructor): widening is exact
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  static constexpr bf16 from_bits(std::uint16_t bits) {
    bf16 value;
    value.bits = bits;
    return value;
  }
};

/// IEEE binary16: 1 sign, 5 exponent, 10 mantissa bits. Unit roundoff 2^-11, largest finite value 65504.
struct f16 {
  std::uint16_t bits = 0;

  constexpr f16() = default;
  constexpr explicit f16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (u >> 16) & 0x8000u;
    const std::uint32_t magnitude = u & 0x7fffffffu;
    std::uint32_t half = 0;
    if (magnitude > 0x7f800000u) {
      half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
      half = 0x7c00u;
    } else if (magnitude >= 0x38800000u) {  // normal: rebias the exponent by -112, then round
      half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    } else {
      // Subnormal: adding 0.5 aligns the mantissa so that the float unit rounds at 2^-24, to nearest even.
      const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
      half = std::bit_cast<std::uint32_t>(aligned) - 0x3f000000u;
    }
    bits = static_cast<std::uint16_t>(sign | half);
  }
  constexpr operator float() const {  // NOLINT(google-explicit-constructor): widening is exact
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  static constexpr f16 from_bits(std::uint16_t bits) {
    f16 value;
    value.bits = bits;
    return value;
  }
};

/// Element type of a tensor. Values are f64, f32, bf16 or f16; labels i32 or u8; masks u8.
enum class Dtype : std::uint8_t { f64, f32, bf16, f16, i32, u8 };

/// Bytes an element.
constexpr std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64: return 8;
    case Dtype::f32: return 4;
    case Dtype::bf16: return 2;
    case Dtype::f16: return 2;
    case Dtype::i32: return 4;
    case Dtype::u8: return 1;
  }
  return 0;
}

/// "f64", "f32", "bf16", "f16", "i32" or "u8".
constexpr std::string_view name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64: return "f64";
    case Dtype::f32: return "f32";
    case Dtype::bf16: return "bf16";
    case Dtype::f16: return "f16";
    case Dtype::i32: return "i32";
    case Dtype::u8: return "u8";
  }
  return "?";
}

/// True for the dtypes that have gradients: f64, f32, bf16, f16.
constexpr bool is_floating(Dtype dtype) {
  return dtype == Dtype::f64 || dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16;
}

/// The dtype in which sums, losses and parameter gradients of `dtype` are kept: f64 for f64, else f32.
constexpr Dtype accumulation_dtype(Dtype dtype) { return dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32; }

namespace detail {
template <class T>
struct DtypeOf;
template <>
struct DtypeOf<double> : std::integral_constant<Dtype, Dtype::f64> {};
template <>
struct DtypeOf<float> : std::integral_constant<Dtype, Dtype::f32> {};
template <>
struct DtypeOf<bf16> : std::integral_constant<Dtype, Dtype::bf16> {};
template <>
struct DtypeOf<f16> : std::integral_constant<Dtype, Dtype::f16> {};
template <>
struct DtypeOf<std::int32_t> : std::integral_constant<Dtype, Dtype::i32> {};
template <>
struct DtypeOf<std::uint8_t> : std::integral_constant<Dtype, Dtype::u8> {};
}  // namespace detail

/// The Dtype of a C++ element type; ill-formed for any other type.
template <class T>
inline constexpr Dtype dtype_of = detail::DtypeOf<std::remove_cv_t<T>>::value;

}  // namespace fusegrad
