// Elements of any floating dtype as the type that kernels compute in, and back, a block at a time. Not installed.
//
// The 16-bit conversions give the bits of dtype.h without a branch, so that loops over them vectorise.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/autograd/narrow.h>

// Tells the compiler that iterations of the next loop are independent: an output may be an input, element for element,
// which the run-time overlap check of a vectorised loop would mistake for a dependence.
#if defined(__clang__)
#define FUSEGRAD_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define FUSEGRAD_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace fusegrad::kernels {

/// Elements that are converted at a time: small enough for the first-level cache, whatever the number of operands.
inline constexpr std::int64_t kBlock = 512;

/// The type in which a kernel with these operands computes: double if one is f64, else float.
template <class... Dtypes>
bool any_f64(Dtypes... dtypes) {
  return ((dtypes == Dtype::f64) || ...);
}

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<From, f16>) {
    const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000u) << 16;
    const std::uint32_t magnitude = static_cast<std::uint32_t>(value.bits & 0x7fffu) << 13;
    // Shifted, f16's exponent is 112 too small: the product restores it and makes subnormals normal.
    const float finite = std::bit_cast<float>(magnitude) * 0x1p112f;
    const std::uint32_t bits =
        magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : std::bit_cast<std::uint32_t>(finite);
    return static_cast<To>(std::bit_cast<float>(sign | bits));
  } else if constexpr (std::is_same_v<To, f16> && std::is_same_v<From, float>) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (u >> 16) & 0x8000u;
    const std::uint32_t magnitude = u & 0x7fffffffu;
    const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Adding 0.5 aligns the mantissa so that the float unit rounds at 2^-24, to nearest even.
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    const std::uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    std::uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // 65520 and above round to infinity
    half = magnitude > 0x7f800000u ? nan : half;
    return f16::from_bits(static_cast<std::uint16_t>(sign | half));
  } else if constexpr (std::is_same_v<From, double>) {
    return detail::narrow<To>(value);
  } else {
    return To(value);
  }
}

/// What an absent operand reads.
template <class Compute>
alignas(64) inline constexpr Compute kZeros[kBlock] = {};

/// Elements [first, first + count) of `data` as Compute: in place if that is their type, else in `buffer`. At most
/// kBlock elements; zeros if there is no data.
template <class Compute>
const Compute* load(const void* data, Dtype dtype, std::int64_t first, std::int64_t count, Compute* buffer) {
  if (!data) return kZeros<Compute>;
  return detail::visit_floating(dtype, [&]<class T>() -> const Compute* {
    const T* from = static_cast<const T*>(data) + first;
    if constexpr (std::is_same_v<T, Compute>) {
      return from;
    } else {
      for (std::int64_t i = 0; i < count; ++i) buffer[i] = convert<Compute>(from[i]);
      return buffer;
    }
  });
}

/// Where to compute elements that start at `first`: in place if Compute is their type, else in `buffer`.
template <class Compute>
Compute* destination(void* data, Dtype dtype, std::int64_t first, Compute* buffer) {
  return dtype == dtype_of<Compute> ? static_cast<Compute*>(data) + first : buffer;
}

/// Rounds what was computed in a buffer to elements [first, first + count) of `data`; nothing to do if it was computed
/// in place.
template <class Compute>
void store(const Compute* values, void* data, Dtype dtype, std::int64_t first, std::int64_t count) {
  detail::visit_floating(dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, Compute>) {
      T* to = static_cast<T*>(data) + first;
      for (std::int64_t i = 0; i < count; ++i) to[i] = convert<T>(values[i]);
    }
  });
}

/// Element `index`, widened.
inline double read(const void* data, Dtype dtype, std::int64_t index = 0) {
  return detail::visit_floating(dtype,
                                [&]<class T>() { return static_cast<double>(static_cast<const T*>(data)[index]); });
}

/// Rounds `value` to element `index`.
inline void write(double value, void* data, Dtype dtype, std::int64_t index = 0) {
  detail::visit_floating(dtype, [&]<class T>() { static_cast<T*>(data)[index] = detail::narrow<T>(value); });
}

}  // namespace fusegrad::kernels
