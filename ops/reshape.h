// The same elements under another shape.
#pragma once

#include <fusegrad/autograd/tape.h>

namespace fusegrad {

/// y has x's elements in row-major order under `shape`, in x's memory: no copy. The gradient is dy under x's shape,
/// handed on without a copy where no other contribution came first.
/// Types:   f64, f32, bf16, f16.
/// Saves:   nothing.
/// Errors:  ShapeError if the number of elements differs.
Var reshape(const Var& x, const Shape& shape);

}  // namespace fusegrad
