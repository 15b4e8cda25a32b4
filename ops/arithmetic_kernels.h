// Kernels of elementwise arithmetic and of full reductions. Not installed.
//
// Elementwise kernels compute in fp32 (fp64 if any operand is f64) and round once. Outputs may be inputs. Reductions
// sum in fp64, in a fixed order that does not depend on the number of threads, and round once.
#pragma once

#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/views.h>

namespace fusegrad::kernels {

/// y = alpha a + beta b; b may be none. Any mix of floating dtypes. alpha and beta are rounded to the type of the sum.
struct WeightedSum {
  ConstVector a = {};
  double alpha = 1;
  ConstVector b = {};
  double beta = 1;
  Vector y = {};
};
void weighted_sum(const CpuExecution& execution, const WeightedSum& args);
void weighted_sum(const CudaExecution& execution, const WeightedSum& args);

/// y = a b + c; c may be none. Any mix of floating dtypes.
struct MultiplyAdd {
  ConstVector a = {};
  ConstVector b = {};
  ConstVector c = {};
  Vector y = {};
};
void multiply_add(const CpuExecution& execution, const MultiplyAdd& args);
void multiply_add(const CudaExecution& execution, const MultiplyAdd& args);

/// y[0] = sum of x / divisor. Division, because a mean of equal values must be that value: 49 * (1 / 49) is not 1.
struct Sum {
  ConstVector x = {};
  double divisor = 1;
  Vector y = {};  ///< one element
};
void sum(const CpuExecution& execution, const Sum& args);
void sum(const CudaExecution& execution, const Sum& args);

/// y[i] = x[0] / divisor + c[i]; c may be none.
struct Broadcast {
  ConstVector x = {};  ///< one element
  double divisor = 1;
  ConstVector c = {};
  Vector y = {};
};
void broadcast(const CpuExecution& execution, const Broadcast& args);
void broadcast(const CudaExecution& execution, const Broadcast& args);

}  // namespace fusegrad::kernels
