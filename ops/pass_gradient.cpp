#include <fusegrad/ops/arithmetic_kernels.h>
#include <fusegrad/ops/dispatch.h>
#include <fusegrad/ops/pass_gradient.h>

namespace fusegrad {

void pass_gradient(Backward& sweep, int index, const Tensor& gradient) {
  if (sweep.may_alias(index)) {
    sweep.alias(index, gradient);
    return;
  }
  GradientRequest request = sweep.request(index);
  const kernels::WeightedSum args{
      .a = vector_of(gradient), .b = vector_of(request.c), .y = mutable_vector_of(request.d)};
  dispatch(sweep.context(), [&](const auto& execution) { kernels::weighted_sum(execution, args); });
  sweep.written(index);
}

}  // namespace fusegrad
