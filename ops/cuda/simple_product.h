// A matrix product that needs nothing of its operands: any size, leading dimension and alignment. Not installed.
#pragma once

#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/linear_kernels.h>

namespace fusegrad::kernels {

/// d = op(a) op(b) + c, in a's accumulation dtype, rounded once. Right where cuBLASLt has no algorithm, also the
/// oracle by which its algorithms are judged, and slow: fp32 units, tiles of 64 x 64 through shared memory. Terms are
/// added in the order of the reduction. With a reduction length of 0, d is c or 0.
struct SimpleProduct {
  ConstMatrix a = {};  ///< [m, k], or [k, m] transposed; any floating dtype
  Transpose transpose_a = Transpose::no;
  ConstMatrix b = {};  ///< [k, n], or [n, k] transposed; a's dtype
  Transpose transpose_b = Transpose::no;
  ConstMatrix c = {};  ///< [m, n], d's dtype; may be d; or none
  Matrix d = {};       ///< [m, n], a's dtype or its accumulation dtype
};
void simple_product(const CudaExecution& execution, const SimpleProduct& args);

}  // namespace fusegrad::kernels
