// y = sum of x / divisor. Backward: dx[i] = dy / divisor + c[i].
#include <algorithm>

#include <fusegrad/autograd/op.h>
#include <fusegrad/ops/arithmetic_kernels.h>
#include <fusegrad/ops/dispatch.h>
#include <fusegrad/ops/reduction.h>
#include <fusegrad/ops/views.h>

namespace fusegrad {
namespace {

class SumRule final : public Rule {
 public:
  explicit SumRule(double divisor) : divisor_(divisor) {}

  void backward(Backward& sweep) override {
    if (!sweep.needs(0)) return;
    GradientRequest request = sweep.request(0);
    const kernels::Broadcast args{
        .x = vector_of(sweep.dy()), .divisor = divisor_, .c = vector_of(request.c), .y = mutable_vector_of(request.d)};
    dispatch(sweep.context(), [&](const auto& execution) { kernels::broadcast(execution, args); });
    sweep.written(0);
  }

 private:
  double divisor_;
};

Var record(Recording op, const Var& x, double divisor) {
  Tensor y = op.new_tensor({}, accumulation_dtype(x.dtype()));
  const kernels::Sum args{.x = vector_of(op.input(0)), .divisor = divisor, .y = mutable_vector_of(y)};
  dispatch(op.context(), [&](const auto& execution) { kernels::sum(execution, args); });
  return op.finish<SumRule>(y, divisor);
}

}  // namespace

Var sum(const Var& x) { return record(Recording("sum", {x}), x, 1); }

Var mean(const Var& x) {
  return record(Recording("mean", {x}), x, static_cast<double>(std::max<std::int64_t>(x.shape().size(), 1)));
}

}  // namespace fusegrad
