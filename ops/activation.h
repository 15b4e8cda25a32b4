// Activations on their own. Prefer the activation of `linear`: it costs no pass over memory.
#pragma once

#include <fusegrad/autograd/tape.h>
#include <fusegrad/ops/activation_kind.h>

namespace fusegrad {

/// y = max(x, 0), NaN where x is NaN; derivative 1 where x >= 0, else 0, selected rather than multiplied.
/// Shapes:  any; y has x's.
/// Types:   f64, f32, bf16, f16.
/// Saves:   one bit an element, in the layout of the fused linear op, so a consumer absorbs it just the same.
/// Errors:  DtypeError.
Var relu(const Var& x);

/// y = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), computed in fp32 (fp64 for f64) and rounded once.
/// Shapes:  any; y has x's.
/// Types:   f64, f32, bf16, f16.
/// Saves:   x.
/// Errors:  DtypeError.
/// Source:  Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016), the tanh form.
Var gelu_tanh(const Var& x);

/// y = x Phi(x) with Phi the standard normal distribution function. As gelu_tanh otherwise.
Var gelu_erf(const Var& x);

/// The activation named by `activation`; none returns x itself.
Var activate(const Var& x, Activation activation);

}  // namespace fusegrad
