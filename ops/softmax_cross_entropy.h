// The loss of classification: cross-entropy of softmax(logits) with class indices.
#pragma once

#include <optional>

#include <fusegrad/autograd/tape.h>
#include <fusegrad/ops/loss_options.h>

namespace fusegrad {

struct SoftmaxCrossEntropyOptions {
  Reduction reduction = Reduction::mean;
  /// Share of the target that is spread evenly over all classes. Range: 0 to 1.
  double label_smoothing = 0;
  /// Rows with this label do not count: loss 0, gradient 0. It need not be a class.
  std::optional<int> ignore_index = std::nullopt;
  /// [classes], finite and not negative, f32 (or f64 for f64 logits); a row counts with its label's weight. Unset: 1.
  Tensor class_weights = {};
};

/// Row loss = log(sum_j exp(z_j)) - z_label, from logits z: no softmax before it.
/// With label smoothing a, class weights w and C classes, in general
///   (1 - a) w_label (log(sum_j exp(z_j)) - z_label) + a / C sum_k w_k (log(sum_j exp(z_j)) - z_k).
/// Reduction::mean divides the sum of the row losses by the number (sum of the label weights) of the rows that are not
/// ignored; if none counts, the result is 0 with zero gradients.
/// Shapes:  logits [batch, classes], labels [batch] -> scalar [], or [batch] for Reduction::none.
/// Types:   logits f64, f32, bf16, f16; labels i32 or u8. The result is f64 for f64, else f32. Exponentials in fp32
///          (fp64 for f64), sums and logarithms in fp64, rounded once.
/// Saves:   logits, labels, class weights, and two numbers a row: its largest logit and its sum of exponentials.
/// Errors:  ShapeError; DtypeError for labels that are not i32 or u8; DeviceError for another context; ValueError for a
///          label that is neither a class nor ignored (row and value named), for label_smoothing outside [0, 1], for a
///          class weight that is negative or not finite. On a GPU labels and class weights are looked at by the kernel:
///          the ValueError comes from the next read of a result or wait on the context, and until then optimizers
///          change nothing.
/// Special: a logit of -inf is a class that is ruled out: probability 0, loss +inf if it is the label. A row without a
///          finite maximum has loss and gradient NaN; other rows are not affected.
/// Error:   row loss u (4 |L| + 2 |z_label - z_max| + 8), row gradient u (8 p + 1) an element, u = 2^-24 (2^-53 for
///          f64), before the rounding to the output dtype.
/// Bits:    do not depend on the number of threads.
Var softmax_cross_entropy(const Var& logits, const Tensor& labels, const SoftmaxCrossEntropyOptions& options = {});

}  // namespace fusegrad
