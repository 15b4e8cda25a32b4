// y = (prediction - target)^2, reduced. Backward: d = 2 (prediction - target) dy / divisor + c.
#include <fusegrad/autograd/branches.h>
#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/op.h>
#include <fusegrad/ops/dispatch.h>
#include <fusegrad/ops/mse_loss.h>
#include <fusegrad/ops/mse_loss_kernels.h>

namespace fusegrad {
namespace {

using detail::require;

class MseLossRule final : public Rule {
 public:
  MseLossRule(const Tensor& prediction, const Tensor& target, Reduction reduction) : reduction_(reduction) {
    save(prediction);
    save(target);
  }

  void backward(Backward& sweep) override {
    if (!sweep.needs(0)) return;
    GradientRequest request = sweep.request(0);
    const kernels::MseLossBackward args{.prediction = vector_of(saved(0)),
                                        .target = vector_of(saved(1)),
                                        .reduction = reduction_,
                                        .dy = vector_of(sweep.dy()),
                                        .c = vector_of(request.c),
                                        .d = mutable_vector_of(request.d)};
    dispatch(sweep.context(), [&](const auto& execution) { kernels::mse_loss_backward(execution, args); });
    sweep.written(0);
  }

 private:
  Reduction reduction_;
};

void check_target(const Recording& op, const Var& prediction, const Tensor& target) {
  require<StateError>(target.defined(), "mse_loss: target is an empty handle");
  require<ShapeError>(target.shape() == prediction.shape(), "mse_loss: target must be {} as prediction is, got {}",
                      prediction.shape(), target.shape());
  const Dtype wide = accumulation_dtype(prediction.dtype());
  require<DtypeError>(target.dtype() == prediction.dtype() || target.dtype() == wide,
                      "mse_loss: target must be {}{}, got {}", name_of(prediction.dtype()),
                      prediction.dtype() == wide ? "" : " or f32", name_of(target.dtype()));
  require<DeviceError>(target.context() == op.context(), "mse_loss: target must be on the context of prediction");
}

}  // namespace

Var mse_loss(const Var& prediction, const Tensor& target, const MseLossOptions& options) {
  Recording op("mse_loss", {prediction});
  check_target(op, prediction, target);
  const bool each = options.reduction == Reduction::none;
  Tensor y = op.new_tensor(each ? prediction.shape() : Shape{}, accumulation_dtype(prediction.dtype()));
  const kernels::MseLossForward args{.prediction = vector_of(op.input(0)),
                                     .target = vector_of(target),
                                     .reduction = options.reduction,
                                     .y = mutable_vector_of(y)};
  {
    // Backward needs none of it, so that it can start at once.
    const detail::Beside beside(op.context(), {&op.input(0), &target, &y});
    dispatch(op.context(), [&](const auto& execution) { kernels::mse_loss_forward(execution, args); });
  }
  return op.finish<MseLossRule>(y, op.input(0), target, options.reduction);
}

}  // namespace fusegrad
