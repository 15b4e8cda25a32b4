// Kernels of softmax cross-entropy with class indices as targets. Not installed.
//
// With m the largest logit of a row, s = sum of exp(z_j - m), t its label, w the class weights (1 if none), W their
// sum, C the number of classes and a the label smoothing:
//   row loss  = (1 - a) w_t (log s + m - z_t) + a / C sum_j w_j (log s + m - z_j)
//   d / d z_j = exp(z_j - m) / s ((1 - a) w_t + a / C W) - [j = t] (1 - a) w_t - a / C w_j
// A row counts with the weight w_t. Ignored rows have loss 0, gradient 0 and weight 0, whatever their logits are; so
// has, term by term, whatever has weight 0 (0 times an infinite term is taken as 0).
#pragma once

#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/loss_options.h>
#include <fusegrad/ops/views.h>

namespace fusegrad::kernels {

/// What forward and backward have in common.
struct SoftmaxCrossEntropy {
  ConstMatrix logits = {};         ///< [batch, classes], any floating dtype
  ConstVector labels = {};         ///< [batch], i32 or u8; each in [0, classes) or ignore_index
  ConstVector class_weights = {};  ///< [classes], f32 or f64; or none
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0;
  std::int64_t ignore_index = INT64_MIN;  ///< no label if none is ignored
};

/// Row losses and their reduction, 0 for a mean over no weight. Exponentials in fp32 (fp64 for f64 logits), all sums
/// and logarithms in fp64, in an order that does not depend on the number of threads; one rounding.
struct SoftmaxCrossEntropyForward {
  SoftmaxCrossEntropy loss = {};
  /// For backward, [2 batch + 1]: m of every row, s of every row, the sum of the rows' weights; or none.
  Vector statistics = {};
  Vector y = {};  ///< one element, or [batch] for Reduction::none
};
void softmax_cross_entropy_forward(const CpuExecution& execution, const SoftmaxCrossEntropyForward& args);
/// Reports bad labels and class weights as the context's fault (autograd/cuda/fault.h); such a row has loss NaN and
/// gradient 0.
void softmax_cross_entropy_forward(const CudaExecution& execution, const SoftmaxCrossEntropyForward& args);

/// d = gradient + c, in one pass over the logits.
struct SoftmaxCrossEntropyBackward {
  SoftmaxCrossEntropy loss = {};
  ConstVector statistics = {};
  ConstVector dy = {};  ///< as y
  ConstMatrix c = {};   ///< [batch, classes], d's dtype; may be d; or none
  Matrix d = {};        ///< [batch, classes], any floating dtype
};
void softmax_cross_entropy_backward(const CpuExecution& execution, const SoftmaxCrossEntropyBackward& args);
void softmax_cross_entropy_backward(const CudaExecution& execution, const SoftmaxCrossEntropyBackward& args);

}  // namespace fusegrad::kernels
