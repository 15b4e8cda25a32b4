// The fused affine map: product, bias and activation in one pass, forward and backward.
#pragma once

#include <fusegrad/autograd/tape.h>
#include <fusegrad/ops/activation_kind.h>

namespace fusegrad {

struct LinearOptions {
  Activation activation = Activation::none;
};

/// Fused affine map and activation, y = act(x wᵀ + b).
/// Shapes:  x [batch, in] (or more leading axes, taken together), w [out, in], b [out] -> y [batch, out].
/// Types:   one dtype for x, w, b: f64, f32, bf16 or f16; products and sums in fp32 (fp64 for f64), rounded once.
/// Saves:   x and w where the other needs a gradient; relu: one bit an element of y; gelu: the pre-activation.
///          Nothing on an inference tape.
/// Gradients: dw and db of parameters are f32 (f64 for f64), those of variables have the variable's dtype.
/// Errors:  ShapeError if w is not [out, in] or b not [out]; DtypeError; StateError for Vars of different tapes.
/// Absorbs: the activation gradient of the op that made x, and that op's bias gradient.
/// Error:   within the bound u S (4 sqrt(in) + in / 8), S = |x| |w|ᵀ + |b|, u = 2^-24 (2^-53 for f64), before the
///          activation and the final rounding; exact where every partial sum is representable.
/// Bits:    do not depend on the number of threads.
Var linear(const Var& x, const Var& w, const Var& b, const LinearOptions& options = {});

/// As above without a bias.
Var linear(const Var& x, const Var& w, const LinearOptions& options = {});

}  // namespace fusegrad
