// The loss of regression: the squared error.
#pragma once

#include <fusegrad/autograd/tape.h>
#include <fusegrad/ops/loss_options.h>

namespace fusegrad {

struct MseLossOptions {
  Reduction reduction = Reduction::mean;
};

/// (prediction - target)^2, without a factor 1/2; the mean is over all elements, batch and features, and 0 if there are
/// none. Gradient of the mean: 2 (prediction - target) / elements.
/// Shapes:  target has exactly the prediction's shape, nothing broadcasts; -> scalar [], or that shape for
///          Reduction::none.
/// Types:   prediction f64, f32, bf16, f16; target the prediction's dtype, or f32 for a 16-bit prediction. The result
///          is f64 for f64, else f32. Computed in fp64 and rounded once; the gradient in fp32 (fp64 for f64).
/// Saves:   prediction and target.
/// Errors:  ShapeError; DtypeError; DeviceError for a target on another context.
/// Error:   for n elements (39 + log2(n / 512)) 2^-53 of the result, and half a unit in the last place of it.
/// Bits:    do not depend on the number of threads.
Var mse_loss(const Var& prediction, const Tensor& target, const MseLossOptions& options = {});

}  // namespace fusegrad
