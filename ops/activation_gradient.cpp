#include <fusegrad/ops/activation_gradient.h>

namespace fusegrad {

Tensor prepare_mask(const Recording& op, std::int64_t rows, std::int64_t cols, kernels::ActivationForward& args) {
  BranchLog* log = op.branches();
  if (log && log->replaying()) {
    Tensor decisions = log->next();
    args.branches = static_cast<const std::uint8_t*>(decisions.raw());
    return decisions;
  }
  if (!log && !op.differentiable()) return {};
  Tensor mask = op.new_tensor({mask_bytes(rows, cols)}, Dtype::u8);
  args.mask = static_cast<std::uint8_t*>(mask.mutable_raw());
  if (log) log->add(mask);
  return mask;
}

}  // namespace fusegrad
