// What a consumer needs to apply the activation gradient of the op that made its input, and the saving of it.
// Not installed.
#pragma once

#include <fusegrad/autograd/op.h>
#include <fusegrad/ops/activation_kernels.h>
#include <fusegrad/ops/activation_kind.h>
#include <fusegrad/ops/views.h>

namespace fusegrad {

/// The gradient of one recorded activation: dz = act'(saved) ∘ dy.
struct ActivationGradient {
  Activation activation = Activation::none;
  /// relu: the bit mask (views.h). gelu_tanh, gelu_erf: the pre-activation z, in the dtype of the activation's output;
  /// its rows may be longer than the output's.
  Tensor saved = {};
  /// Input features of the linear op that the activation ends; 0 for an activation of its own.
  std::int64_t inputs = 0;
};

/// Points a backward kernel's arguments to what `gradient` saved of an output with `cols` columns.
template <class Args>
void read_saved(const ActivationGradient& gradient, std::int64_t cols, Args& args) {
  if (gradient.activation == Activation::relu) {
    args.mask = static_cast<const std::uint8_t*>(gradient.saved.raw());
  } else if (gradient.activation != Activation::none) {
    args.pre_activation = matrix_of(gradient.saved);
    args.pre_activation.cols = cols;
  }
}

/// Columns of the tensor in which a pre-activation of `cols` columns is saved: cuBLASLt wants rows of whole 8 elements.
constexpr std::int64_t padded_columns(std::int64_t cols) { return (cols + 7) / 8 * 8; }

/// Where the relu of `op` writes its bit mask: a new tensor if backward or the branch log wants it. In a replay the
/// kernel reads the logged decisions instead of the signs.
Tensor prepare_mask(const Recording& op, std::int64_t rows, std::int64_t cols, kernels::ActivationForward& args);

}  // namespace fusegrad
