// Elementwise sums and products of Vars, by name and as operators.
#pragma once

#include <fusegrad/autograd/tape.h>

namespace fusegrad {

/// y = a + b.
/// Shapes:  a and b have one shape, y has it too; nothing broadcasts.
/// Types:   one dtype for a, b and y: f64, f32, bf16 or f16; computed in fp32 (fp64 for f64) and rounded once.
/// Saves:   nothing. Both gradients are dy itself and are handed on without a copy where no other contribution came
///          first.
/// Errors:  ShapeError; DtypeError; StateError for Vars of different tapes.
/// Error:   u |y|, u = 2^-53 (f64), 2^-24 (f32), 2^-8 (bf16), 2^-11 (f16): y is rounded to nearest.
Var add(const Var& a, const Var& b);

/// y = a - b. As add; the gradient of b is -dy.
Var sub(const Var& a, const Var& b);

/// y = a b, element by element. As add, but saves a where b needs a gradient, and b where a needs one.
Var mul(const Var& a, const Var& b);

/// y = factor x, with `factor` rounded to fp32 first (not for f64).
/// Shapes:  any; y has x's.
/// Types:   f64, f32, bf16, f16, as add.
/// Saves:   nothing. With factor 1 the gradient is handed on without a copy.
/// Error:   u |y| if the factor is representable in fp32 (fp64 for f64), else 2^-24 |y| more.
Var scale(const Var& x, double factor);

inline Var operator+(const Var& a, const Var& b) { return add(a, b); }
inline Var operator-(const Var& a, const Var& b) { return sub(a, b); }
inline Var operator-(const Var& x) { return scale(x, -1); }
inline Var operator*(const Var& a, const Var& b) { return mul(a, b); }
inline Var operator*(double factor, const Var& x) { return scale(x, factor); }
inline Var operator*(const Var& x, double factor) { return scale(x, factor); }

}  // namespace fusegrad
