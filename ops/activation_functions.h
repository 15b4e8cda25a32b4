// GELU, its two forms, and their derivatives: one definition for every backend. Not installed.
//
// Both are z times a probability q(z) that falls to 0 on the left. Written naively they lose everything there (1 + tanh
// cancels) and give NaN far out (infinity times 0); here:
//
//   gelu_tanh  q = 1 / (1 + e^(-2u)),  u = sqrt(2/pi) (z + 0.044715 z^3),  since (1 + tanh u) / 2 is the logistic
//              function of 2u;  slope q + z q (1 - q) 2u',  with 1 - q = q e^(-2u)
//   gelu_erf   q = erfc(-z / sqrt 2) / 2 = Phi(z);  slope q + z phi(z)
//
// Left of a cut value and slope are 0; far right q is 1 and so is the slope: infinities give their limits. NaN stays
// NaN. The functions are free of branches, so that compilers can run them in vectors.
//
// Largest errors, held by the tests of the activation kernels: float, 2^-22 |z| for the value and 2^-22 for the slope;
// double, 1e-14 relative plus 1e-16 for both.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include <fusegrad/autograd/host_device.h>
#include <fusegrad/ops/activation_kind.h>

namespace fusegrad::detail {

/// e^x, to 2 units in the last place, with results below the normal range flushed to 2^-126 and above 2^127 clamped. On
/// a GPU the hardware's, to 2 + |x| units in the last place and with the limits 0 and infinity: enough, since x itself
/// was rounded, and a third of the instructions.
FUSEGRAD_HOST_DEVICE inline float exp_clamped(float x) {
#if defined(__CUDA_ARCH__)
  return __expf(x);
#else
  x = x < -87.336f ? -87.336f : x;
  x = x > 88.028f ? 88.028f : x;
  // Adding 1.5 * 2^23 rounds x / ln 2 to an integer and leaves it in the low bits.
  const float shifted = x * 1.44269504f + 12582912.0f;
  const float count = shifted - 12582912.0f;
  const float r = (x - count * 0.693359375f) - count * -2.12194440e-4f;
  // Source of the polynomial: S. Moshier's Cephes, expf.
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float mantissa = p * r * r + r + 1.0f;
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(shifted) + 127u) << 23;
  return mantissa * std::bit_cast<float>(exponent);
#endif
}
FUSEGRAD_HOST_DEVICE inline double exp_clamped(double x) { return std::exp(x); }

/// 1 / x for x >= 1. On a GPU to 1 unit in the last place, and 0 from 2^126 on.
FUSEGRAD_HOST_DEVICE inline float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  return __fdividef(1.0f, x);
#else
  return 1.0f / x;
#endif
}

/// a b + c. On a GPU with one rounding, which is one instruction there.
FUSEGRAD_HOST_DEVICE inline float mul_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return a * b + c;
#endif
}

/// 0.5 z (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))) and its derivative.
struct GeluTanh {
  FUSEGRAD_HOST_DEVICE static float value(float z) {
    const float q = reciprocal(1.0f + exp_clamped(-twice_u(z)));
    return z < kCut ? 0.0f : z * q;
  }
  FUSEGRAD_HOST_DEVICE static float slope(float z) {
    const float zc = z > 10.0f ? 10.0f : z;
    const float e = exp_clamped(-twice_u(zc));
    const float q = reciprocal(1.0f + e);
    const float slope = q + zc * q * (e * q) * (1.5957691216057307f + 0.21406444881780748f * zc * zc);
    return z < kCut ? 0.0f : slope;
  }
  FUSEGRAD_HOST_DEVICE static double value(double z) {
    const double q = 1.0 / (1.0 + std::exp(-twice_u(z)));
    return z < kCutDouble ? 0.0 : z * q;
  }
  FUSEGRAD_HOST_DEVICE static double slope(double z) {
    const double zc = z > 21.0 ? 21.0 : z;
    const double e = std::exp(-twice_u(zc));
    const double q = 1.0 / (1.0 + e);
    const double slope = q + zc * q * (e * q) * (1.5957691216057307118 + 0.21406444881780074633 * zc * zc);
    return z < kCutDouble ? 0.0 : slope;
  }

 private:
  // e^(-2u) is about to overflow; the value is -6e-38, or -1e-300.
  static constexpr float kCut = -10.02f;
  static constexpr double kCutDouble = -21.0;

  FUSEGRAD_HOST_DEVICE static float twice_u(float z) {
    return z * (1.5957691216057307f + 0.07135481627260025f * z * z);
  }
  FUSEGRAD_HOST_DEVICE static double twice_u(double z) {
    return z * (1.5957691216057307118 + 0.071354816272600248776 * z * z);
  }
};

/// z Phi(z) and its derivative, Phi the normal distribution function.
struct GeluErf {
  FUSEGRAD_HOST_DEVICE static float value(float z) { return z < -kFar ? 0.0f : z * parts_of(z).q; }
  FUSEGRAD_HOST_DEVICE static float slope(float z) {
    const float zc = z > kFar ? kFar : z;
    const Parts parts = parts_of(zc);
    return z < -kFar ? 0.0f : parts.q + zc * (0.3989422804f * parts.e);
  }
  FUSEGRAD_HOST_DEVICE static double value(double z) {
    const double zc = z < -kFarDouble ? -kFarDouble : z;
    return zc * (0.5 * std::erfc(zc * -kSqrtHalf));
  }
  FUSEGRAD_HOST_DEVICE static double slope(double z) {
    double zc = z < -kFarDouble ? -kFarDouble : z;
    zc = zc > kFarDouble ? kFarDouble : zc;
    return 0.5 * std::erfc(zc * -kSqrtHalf) + zc * (0.39894228040143267794 * std::exp(-0.5 * zc * zc));
  }

 private:
  static constexpr float kFar = 13.2f;        // e^(-z^2/2) leaves the normal range
  static constexpr double kFarDouble = 39.0;  // erfc and exp are 0
  static constexpr double kSqrtHalf = 0.70710678118654752440;

  struct Parts {
    float q;  // Phi(z)
    float e;  // e^(-z^2/2)
  };
  // Phi(-a) = e^(-a^2/2) R(a) for a >= 0, where R falls slowly from 1/2: R(a) = t P(t), t = 1 / (1 + 0.3 a). P is the
  // polynomial of degree 9 with the least relative error on [0, 14.5], 2^-28, found by Remez's algorithm.
  FUSEGRAD_HOST_DEVICE static Parts parts_of(float z) {
    const float a = z < 0.0f ? -z : z;
    const float e = exp_clamped(-0.5f * a * a);
    const float t = reciprocal(mul_add(0.3f, a, 1.0f));
    float p = -0.0206234747224f;
    p = mul_add(p, t, 0.112435637356f);
    p = mul_add(p, t, -0.228213640117f);
    p = mul_add(p, t, 0.191784564906f);
    p = mul_add(p, t, -0.0794234964479f);
    p = mul_add(p, t, 0.0961568249436f);
    p = mul_add(p, t, 0.0783896555333f);
    p = mul_add(p, t, 0.110235422853f);
    p = mul_add(p, t, 0.119571814167f);
    p = mul_add(p, t, 0.119686689798f);
    const float tail = e * (t * p);
    return {z < 0.0f ? tail : 1.0f - tail, e};
  }
};

}  // namespace fusegrad::detail
