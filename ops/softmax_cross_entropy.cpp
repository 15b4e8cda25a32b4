// Softmax cross-entropy: the loss of softmax_cross_entropy_kernels.h. Backward reads the logits once more and makes the
// probabilities again from the row's largest logit and sum of exponentials: saving the probabilities would cost another
// matrix as large as the logits.
#include <cmath>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/autograd/op.h>
#include <fusegrad/ops/dispatch.h>
#include <fusegrad/ops/softmax_cross_entropy.h>
#include <fusegrad/ops/softmax_cross_entropy_kernels.h>

namespace fusegrad {
namespace {

using detail::require;

constexpr std::string_view kOp = "softmax_cross_entropy";

class SoftmaxCrossEntropyRule final : public Rule {
 public:
  SoftmaxCrossEntropyRule(const kernels::SoftmaxCrossEntropy& loss, const Tensor& logits, const Tensor& labels,
                          const Tensor& class_weights, const Tensor& statistics)
      : loss_(loss) {
    save(logits);
    save(labels);
    save(statistics);
    if (class_weights.defined()) save(class_weights);
  }

  void backward(Backward& sweep) override {
    if (!sweep.needs(0)) return;
    GradientRequest request = sweep.request(0);
    const kernels::SoftmaxCrossEntropyBackward args{.loss = loss_,
                                                    .statistics = vector_of(saved(2)),
                                                    .dy = vector_of(sweep.dy()),
                                                    .c = matrix_of(request.c),
                                                    .d = mutable_matrix_of(request.d)};
    dispatch(sweep.context(), [&](const auto& execution) { kernels::softmax_cross_entropy_backward(execution, args); });
    sweep.written(0);
  }

 private:
  kernels::SoftmaxCrossEntropy loss_;  // its views are of saved tensors
};

/// On a CPU. On a GPU the kernel does it, since a look at them from here would wait for everything before.
void check_labels(const Tensor& labels, std::int64_t classes, std::int64_t ignored) {
  if (labels.device().type != DeviceType::cpu) return;
  const auto check = [&]<class T>(std::span<const T> values) {
    for (std::size_t row = 0; row < values.size(); ++row) {
      const std::int64_t label = values[row];
      if (label >= 0 && label < classes) continue;
      require<ValueError>(label == ignored, "{}: label {} in row {} is not one of {} classes", kOp, label, row,
                          classes);
    }
  };
  if (labels.dtype() == Dtype::u8) return check(labels.data<std::uint8_t>());
  check(labels.data<std::int32_t>());
}

void check_class_weights(const Tensor& weights, const Recording& op, const Var& logits) {
  const std::int64_t classes = logits.shape()[1];
  const Dtype wide = accumulation_dtype(logits.dtype());
  require<ShapeError>(weights.shape() == Shape{classes},
                      "{}: class_weights must be [{}] ({} = columns of logits), got {}", kOp, classes, classes,
                      weights.shape());
  require<DtypeError>(weights.dtype() == Dtype::f32 || weights.dtype() == wide, "{}: class_weights must be {}, got {}",
                      kOp, wide == Dtype::f64 ? "f32 or f64" : "f32", name_of(weights.dtype()));
  require<DeviceError>(weights.context() == op.context(), "{}: class_weights must be on the context of logits", kOp);
  if (weights.device().type != DeviceType::cpu) return;  // see check_labels
  detail::visit_floating(weights.dtype(), [&]<class T>() {
    const auto values = weights.data<T>();
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto weight = static_cast<double>(values[i]);
      require<ValueError>(std::isfinite(weight) && weight >= 0,
                          "{}: class weight {} of class {} is not a finite number of at least 0", kOp, weight, i);
    }
  });
}

void check_arguments(const Recording& op, const Var& logits, const Tensor& labels,
                     const SoftmaxCrossEntropyOptions& options) {
  require<ShapeError>(logits.shape().rank() == 2, "{}: logits must be [batch, classes], got {}", kOp, logits.shape());
  require<StateError>(labels.defined(), "{}: labels is an empty handle", kOp);
  require<DtypeError>(labels.dtype() == Dtype::i32 || labels.dtype() == Dtype::u8,
                      "{}: labels must be class indices, i32 or u8, got {}", kOp, name_of(labels.dtype()));
  const std::int64_t batch = logits.shape()[0];
  require<ShapeError>(labels.shape() == Shape{batch}, "{}: labels must be [{}] ({} = rows of logits), got {}", kOp,
                      batch, batch, labels.shape());
  require<DeviceError>(labels.context() == op.context(), "{}: labels must be on the context of logits", kOp);
  require<ValueError>(options.label_smoothing >= 0 && options.label_smoothing <= 1,
                      "{}: label_smoothing must be 0 to 1, got {}", kOp, options.label_smoothing);
  if (options.class_weights.defined()) check_class_weights(options.class_weights, op, logits);
}

}  // namespace

Var softmax_cross_entropy(const Var& logits, const Tensor& labels, const SoftmaxCrossEntropyOptions& options) {
  Recording op(kOp, {logits});
  check_arguments(op, logits, labels, options);
  const std::int64_t batch = logits.shape()[0];
  const Dtype wide = accumulation_dtype(logits.dtype());
  kernels::SoftmaxCrossEntropy loss{.logits = matrix_of(op.input(0)),
                                    .labels = vector_of(labels),
                                    .class_weights = vector_of(options.class_weights),
                                    .reduction = options.reduction,
                                    .label_smoothing = options.label_smoothing};
  if (options.ignore_index) loss.ignore_index = *options.ignore_index;
  check_labels(labels, logits.shape()[1], loss.ignore_index);

  Tensor y = op.new_tensor(options.reduction == Reduction::none ? Shape{batch} : Shape{}, wide);
  kernels::SoftmaxCrossEntropyForward args{.loss = loss, .y = mutable_vector_of(y)};
  Tensor statistics;
  if (op.differentiable()) {
    statistics = op.new_tensor({2 * batch + 1}, wide);
    args.statistics = mutable_vector_of(statistics);
  }
  dispatch(op.context(), [&](const auto& execution) { kernels::softmax_cross_entropy_forward(execution, args); });
  return op.finish<SoftmaxCrossEntropyRule>(y, loss, op.input(0), labels, options.class_weights, statistics);
}

}  // namespace fusegrad
