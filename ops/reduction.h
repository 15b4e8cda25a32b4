// Full reductions to a scalar.
#pragma once

#include <fusegrad/autograd/tape.h>

namespace fusegrad {

/// y = sum of all elements of x; 0 if there are none.
/// Shapes:  any; y is a scalar, [].
/// Types:   f64, f32, bf16, f16; y is f64 for f64, else f32. Summed in fp64 and rounded once.
/// Saves:   nothing.
/// Error:   for n elements (36 + log2(n / 512)) 2^-53 sum |x|, and half a unit in the last place of y.
/// Bits:    do not depend on the number of threads.
Var sum(const Var& x);

/// y = sum(x) / number of elements; 0 if there are none. As sum otherwise.
Var mean(const Var& x);

}  // namespace fusegrad
