// What a consumer needs to apply the activation gradient of the op that made its input. Not installed.
#pragma once

#include <fusegrad/autograd/tensor.h>
#include <fusegrad/ops/activation_kind.h>

namespace fusegrad {

/// The gradient of one recorded activation: dz = act'(saved) ∘ dy.
struct ActivationGradient {
  Activation activation = Activation::none;
  /// relu: the bit mask (views.h). gelu_tanh, gelu_erf: the pre-activation z, in the dtype of the activation's output.
  Tensor saved;
};

}  // namespace fusegrad
