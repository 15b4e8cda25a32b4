// Every tolerance of the test suite, with its reason. A test that compares floating-point numbers takes its bound here.
//
// Notation: u unit roundoff of the accumulation dtype; S = sum |a_i||b_i| of one output element, by an fp64 product of
// absolute values; k reduction length. Bounds are fp32-side (fp64-side for f64): the rounding to the output dtype is
// not in them, because comparison is by interval: `got` must lie in [round(ref - t), round(ref + t)], both ends rounded
// to the output dtype (matching.h). For a bf16 output that accepts the two neighbours of the true value and no third.
#pragma once

#include <algorithm>
#include <cmath>

#include <fusegrad/autograd/dtype.h>

namespace fusegrad::test {

/// 2^-p for p significant bits.
constexpr double unit_roundoff(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64: return 0x1p-53;
    case Dtype::f16: return 0x1p-11;
    case Dtype::bf16: return 0x1p-8;
    default: return 0x1p-24;
  }
}

/// Unit roundoff of sums of `dtype` elements: 2^-53 for f64, else 2^-24.
constexpr double accumulation_roundoff(Dtype dtype) { return unit_roundoff(accumulation_dtype(dtype)); }

/// What k operations can lose to underflow, at most half a subnormal spacing each.
constexpr double underflow(double k, Dtype dtype) { return k * (dtype == Dtype::f64 ? 0x1p-1074 : 0x1p-149); }

/// Alarm bound of a sum of k products or terms, A = u S (4 sqrt(k) + k / 8). The root covers rounding errors that
/// cancel at random, the linear term truncating blocks of 16. About 7 times above the worst legal accumulator (fp32,
/// blocks of 16, truncating) and 50 times below the nearest illegal one (16-bit); sees one dropped term up to k of
/// about 8000.
inline double alarm(double k, double S, Dtype dtype) {
  return accumulation_roundoff(dtype) * S * (4 * std::sqrt(k) + k / 8) + underflow(k, dtype);
}

/// No right kernel that rounds to nearest can exceed gamma_k S, gamma_k = k u / (1 - k u).
inline double hard(double k, double S, Dtype dtype) {
  const double ku = k * accumulation_roundoff(dtype);
  return ku / (1 - ku) * S + underflow(k, dtype);
}

/// Product plus a bias or a former contribution `c`: one more addition, of two numbers bounded by S and |c|.
inline double alarm_plus(double k, double S, double c, Dtype dtype) {
  return alarm(k, S, dtype) + accumulation_roundoff(dtype) * (S + std::fabs(c));
}

/// Column sum over n rows of terms whose absolute values sum to S and which are themselves off by at most `t` in all;
/// `out` is the dtype of the terms when stored, since a kernel may sum them before or after their rounding.
inline double column_sum(double n, double S, double t, Dtype dtype, Dtype out) {
  const double stored = out == accumulation_dtype(dtype) ? 0 : unit_roundoff(out) * S;
  return alarm(n, S, dtype) + stored + t;
}

// GELU. 1.13 bounds both slopes (1.12899 and 1.12890); 0.331 and 0.32 are max |z gelu''(z)|, rounded up to one figure.
// The functions themselves are good to what activation_functions.h states and activation_kernels_test.cpp holds.

/// Error of gelu or of its slope on its own.
inline double gelu_function(double z, double result, Dtype dtype) {
  if (dtype == Dtype::f64) return 1e-14 * std::fabs(result) + 1e-16;
  return 0x1p-22 * std::max(std::fabs(z), 1.0) + underflow(4, dtype);
}

/// gelu(z) computed from a z that is off by at most `t`.
inline double gelu(double z, double value, double t, Dtype dtype) { return 1.13 * t + gelu_function(z, value, dtype); }

/// g gelu'(z) with g off by at most `t` and z saved in `aux`. `exact_z` is true if the saved z is z itself.
inline double gelu_gradient(double g, double slope, double t, Dtype dtype, Dtype aux, bool exact_z) {
  const double u = accumulation_roundoff(dtype);
  return t * std::fabs(slope) +
         std::fabs(g) * ((exact_z ? 0 : 0.331 * unit_roundoff(aux)) + u + gelu_function(0, slope, dtype)) +
         underflow(4, dtype);
}

/// What cuBLASLt's GELU epilogues may be off by on top, their tanh not being ours. Measured on an H200 with cuBLASLt
/// 13.1, at exact z in every dtype, over shapes from 7 x 7 to 1024 x 512 and |z| up to 20: gelu 3.7e-6 |z| where sums
/// are fp32 (worst near |z| = 1.4), 2.3e-10 |z| in f64; its slope 1.6e-5 (near 3.5) and 3.1e-10. The rest is for what
/// was not drawn.
inline double epilogue_gelu(double z, double b, Dtype dtype) {
  const bool narrow = dtype != accumulation_dtype(dtype);
  const double on_the_way = narrow ? 1.13 * unit_roundoff(dtype) * (2 * std::fabs(z) + std::fabs(b)) : 0;
  return (accumulation_dtype(dtype) == Dtype::f64 ? 3e-10 : 5e-6) * std::fabs(z) + on_the_way;
}
inline double epilogue_gelu_slope(Dtype dtype) { return accumulation_dtype(dtype) == Dtype::f64 ? 4e-10 : 2e-5; }

// Softmax cross-entropy, per row and before the mean: L the loss, z_t the label's logit, p the class probability. The
// sum of exponentials is kept in fp64, so that the number of classes is not in the bound; one that came from a log-sum
// would put the rounding of the logarithm, about 10 u, on every p.

inline double softmax_loss(double L, double z_t, double z_max, Dtype dtype) {
  return accumulation_roundoff(dtype) * (4 * std::fabs(L) + 2 * std::fabs(z_t - z_max) + 8);
}

inline double softmax_gradient(double p, Dtype dtype) { return accumulation_roundoff(dtype) * (8 * p + 1); }

/// What a row loss and its gradient of f64 logits add, whose sums over the classes are in no wider type.
inline double softmax_sums(double classes, double L, Dtype dtype) {
  return dtype == Dtype::f64 ? alarm(classes, 1 + std::fabs(L), dtype) : 0;
}

/// A figure of the closed-form table with 20 digits, in fp64: relative, with room for cancellation.
inline double closed_form(double value) { return 1e-12 * std::fabs(value) + 1e-15; }

/// One optimizer step in `dtype`: 8 u of the update and the rounding of the parameter. After T steps, T times that.
inline double optimizer_step(double update, double parameter, Dtype dtype) {
  return unit_roundoff(dtype) * (8 * std::fabs(update) + std::fabs(parameter));
}

}  // namespace fusegrad::test
