// y = act(x). Backward: dx = act'(saved) ∘ dy + c, or, where the consumer absorbed the activation, dy itself.
#include <fusegrad/autograd/check.h>
#include <fusegrad/ops/activation.h>
#include <fusegrad/ops/activation_gradient.h>
#include <fusegrad/ops/activation_kernels.h>
#include <fusegrad/ops/dispatch.h>
#include <fusegrad/ops/pass_gradient.h>

namespace fusegrad {
namespace {

class ActivationRule final : public Rule {
 public:
  ActivationRule(Activation activation, const Tensor& to_save) : gradient_{activation, to_save} { save(to_save); }

  const ActivationGradient* activation_gradient() const override { return &gradient_; }

  void backward(Backward& sweep) override {
    if (!sweep.needs(0)) return;
    if (sweep.absorbed()) {
      sweep.note("the consumer applied the activation gradient");
      pass_gradient(sweep, 0, sweep.dy());
      return;
    }
    sweep.note("activation gradient in a pass of its own");
    ++sweep.context().state().counters().activation_passes;
    GradientRequest request = sweep.request(0);
    kernels::ActivationBackward args{.dy = matrix_of(sweep.dy()),
                                     .c = matrix_of(request.c),
                                     .dz = mutable_matrix_of(request.d),
                                     .activation = gradient_.activation};
    read_saved(gradient_, args.dz.cols, args);
    dispatch(sweep.context(), [&](const auto& execution) { kernels::activation_backward(execution, args); });
    sweep.written(0);
  }

 private:
  ActivationGradient gradient_;
};

}  // namespace

Var activate(const Var& x, Activation activation) {
  if (activation == Activation::none) return x;
  Recording op(name_of(activation), {x});
  Tensor y = op.new_tensor(x.shape(), x.dtype());
  const ConstMatrix z = matrix_of(op.input(0));
  kernels::ActivationForward args{.z = z, .y = mutable_matrix_of(y), .activation = activation};
  Tensor to_save;
  if (activation == Activation::relu) {
    to_save = prepare_mask(op, z.rows, z.cols, args);
  } else {
    to_save = op.input(0);
  }
  dispatch(op.context(), [&](const auto& execution) { kernels::activation_forward(execution, args); });
  return op.finish<ActivationRule>(y, activation, to_save);
}

Var relu(const Var& x) { return activate(x, Activation::relu); }
Var gelu_tanh(const Var& x) { return activate(x, Activation::gelu_tanh); }
Var gelu_erf(const Var& x) { return activate(x, Activation::gelu_erf); }

}  // namespace fusegrad
