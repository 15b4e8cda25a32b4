// Kernels of the squared error. Not installed.
#pragma once

#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/loss_options.h>
#include <fusegrad/ops/views.h>

namespace fusegrad::kernels {

/// y = (prediction - target)^2, each or summed or averaged; 0 for a mean of none. Computed in fp64, in an order that
/// does not depend on the number of threads, and rounded once.
struct MseLossForward {
  ConstVector prediction = {};  ///< any floating dtype
  ConstVector target = {};      ///< as many elements, any floating dtype
  Reduction reduction = Reduction::mean;
  Vector y = {};  ///< one element, or as many for Reduction::none
};
void mse_loss_forward(const CpuExecution& execution, const MseLossForward& args);
void mse_loss_forward(const CudaExecution& execution, const MseLossForward& args);

/// d = 2 (prediction - target) dy + c, with dy divided by the number of elements for Reduction::mean. Computed in fp32
/// (fp64 if any operand is f64) and rounded once.
struct MseLossBackward {
  ConstVector prediction = {};
  ConstVector target = {};
  Reduction reduction = Reduction::mean;
  ConstVector dy = {};  ///< as y
  ConstVector c = {};   ///< may be d; or none
  Vector d = {};
};
void mse_loss_backward(const CpuExecution& execution, const MseLossBackward& args);
void mse_loss_backward(const CudaExecution& execution, const MseLossBackward& args);

}  // namespace fusegrad::kernels
