// a + b, a - b, a b and factor x.
//
// Backward: an input gradient that is dy itself is handed on; every other one is written once, with what was
// contributed before added in the same pass: da = dy + c, db = c - dy; da = dy b + c, db = dy a + c; dx = factor dy +
// c.
#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/op.h>
#include <fusegrad/ops/arithmetic.h>
#include <fusegrad/ops/arithmetic_kernels.h>
#include <fusegrad/ops/dispatch.h>
#include <fusegrad/ops/pass_gradient.h>

namespace fusegrad {
namespace {

using detail::require;

/// The gradient of input `index` is factor dy.
void scaled_gradient(Backward& sweep, int index, double factor) {
  GradientRequest request = sweep.request(index);
  const kernels::WeightedSum args{
      .a = vector_of(sweep.dy()), .alpha = factor, .b = vector_of(request.c), .y = mutable_vector_of(request.d)};
  dispatch(sweep.context(), [&](const auto& execution) { kernels::weighted_sum(execution, args); });
  sweep.written(index);
}

class AddRule final : public Rule {
 public:
  explicit AddRule(double sign) : sign_(sign) {}

  void backward(Backward& sweep) override {
    if (sweep.needs(0)) pass_gradient(sweep, 0, sweep.dy());
    if (!sweep.needs(1)) return;
    if (sign_ == 1) {
      pass_gradient(sweep, 1, sweep.dy());
    } else {
      scaled_gradient(sweep, 1, sign_);
    }
  }

 private:
  double sign_;
};

class ScaleRule final : public Rule {
 public:
  explicit ScaleRule(double factor) : factor_(factor) {}

  void backward(Backward& sweep) override {
    if (!sweep.needs(0)) return;
    if (factor_ == 1) {
      pass_gradient(sweep, 0, sweep.dy());
    } else {
      scaled_gradient(sweep, 0, factor_);
    }
  }

 private:
  double factor_;
};

class MulRule final : public Rule {
 public:
  /// `others[i]` is what the gradient of input i is multiplied by; undefined if that input gets none.
  MulRule(const Tensor& b, const Tensor& a) : others_{b, a} {
    for (const Tensor& other : others_) {
      if (other.defined()) save(other);
    }
  }

  void backward(Backward& sweep) override {
    for (int index = 0; index < 2; ++index) {
      if (!sweep.needs(index)) continue;
      GradientRequest request = sweep.request(index);
      const kernels::MultiplyAdd args{.a = vector_of(sweep.dy()),
                                      .b = vector_of(others_[static_cast<std::size_t>(index)]),
                                      .c = vector_of(request.c),
                                      .y = mutable_vector_of(request.d)};
      dispatch(sweep.context(), [&](const auto& execution) { kernels::multiply_add(execution, args); });
      sweep.written(index);
    }
  }

 private:
  std::array<Tensor, 2> others_;
};

void check_operands(const Recording& op, const Var& a, const Var& b) {
  require<ShapeError>(a.shape() == b.shape(), "{}: b must be {} as a is, got {}", op.op(), a.shape(), b.shape());
  require<DtypeError>(a.dtype() == b.dtype(), "{}: b must be {} as a is, got {}", op.op(), name_of(a.dtype()),
                      name_of(b.dtype()));
}

/// y = a + sign b.
Var record_sum(Recording op, const Var& a, const Var& b, double sign) {
  check_operands(op, a, b);
  Tensor y = op.new_tensor(a.shape(), a.dtype());
  const kernels::WeightedSum args{
      .a = vector_of(op.input(0)), .b = vector_of(op.input(1)), .beta = sign, .y = mutable_vector_of(y)};
  dispatch(op.context(), [&](const auto& execution) { kernels::weighted_sum(execution, args); });
  return op.finish<AddRule>(y, sign);
}

}  // namespace

Var add(const Var& a, const Var& b) { return record_sum(Recording("add", {a, b}), a, b, 1); }

Var sub(const Var& a, const Var& b) { return record_sum(Recording("sub", {a, b}), a, b, -1); }

Var mul(const Var& a, const Var& b) {
  Recording op("mul", {a, b});
  check_operands(op, a, b);
  Tensor y = op.new_tensor(a.shape(), a.dtype());
  const kernels::MultiplyAdd args{.a = vector_of(op.input(0)), .b = vector_of(op.input(1)), .y = mutable_vector_of(y)};
  dispatch(op.context(), [&](const auto& execution) { kernels::multiply_add(execution, args); });
  return op.finish<MulRule>(y, op.needs(0) ? op.input(1) : Tensor(), op.needs(1) ? op.input(0) : Tensor());
}

Var scale(const Var& x, double factor) {
  Recording op("scale", {x});
  Tensor y = op.new_tensor(x.shape(), x.dtype());
  const kernels::WeightedSum args{.a = vector_of(op.input(0)), .alpha = factor, .y = mutable_vector_of(y)};
  dispatch(op.context(), [&](const auto& execution) { kernels::weighted_sum(execution, args); });
  return op.finish<ScaleRule>(y, factor);
}

}  // namespace fusegrad
