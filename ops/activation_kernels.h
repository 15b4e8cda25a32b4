// Kernels of standalone activations and of activation gradients that no product absorbed. Not installed.
#pragma once

#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/activation_kind.h>
#include <fusegrad/ops/views.h>

namespace fusegrad::kernels {

/// y = act(z + b), computed in fp32 (fp64 for f64) and rounded once.
struct ActivationForward {
  ConstMatrix z = {};  ///< [m, n], y's dtype or its accumulation dtype
  ConstVector b = {};  ///< [n], any floating dtype; or none
  Matrix y = {};       ///< [m, n]
  Activation activation = Activation::none;
  std::uint8_t* mask = nullptr;  ///< relu: bits of z + b >= 0 to be written, padding bits 0; or none
  /// relu: bits to be used instead of the sign of z + b: y is z + b where the bit is 1, else 0; or none.
  const std::uint8_t* branches = nullptr;
  Matrix pre_activation = {};  ///< gelu: z + b, y's dtype; or none
};
void activation_forward(const CpuExecution& execution, const ActivationForward& args);
void activation_forward(const CudaExecution& execution, const ActivationForward& args);

/// dz = act'(saved) ∘ dy + c, with bias = column sums of act'(saved) ∘ dy + bias_c.
struct ActivationBackward {
  ConstMatrix dy = {};  ///< [m, n]
  ConstMatrix c = {};   ///< [m, n], dz's dtype; may be dz; or none
  Matrix dz = {};       ///< [m, n], any floating dtype; may be dy
  Activation activation = Activation::none;
  const std::uint8_t* mask = nullptr;  ///< relu: the gradient is selected, not multiplied: 0 where the bit is 0
  ConstMatrix pre_activation = {};     ///< gelu: z, any floating dtype
  Vector bias = {};                    ///< [n], any floating dtype; or none
  ConstVector bias_c = {};
};
void activation_backward(const CpuExecution& execution, const ActivationBackward& args);
void activation_backward(const CudaExecution& execution, const ActivationBackward& args);

}  // namespace fusegrad::kernels
