#include <algorithm>

#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/ops/cuda/lt_product.h>
#include <fusegrad/ops/cuda/step_operands.h>
#include <fusegrad/ops/cuda/trial_kernels.h>

namespace fusegrad::detail {

StepOperands::~StepOperands() {
  if (block_) backend_.release(block_);
}

bool StepOperands::allocate() {
  block_ = backend_.allocate(static_cast<std::size_t>(std::max<std::int64_t>(used_, 1)));
  if (!block_) return false;
  backend_.stream().synchronize();  // they are used on another stream
  used_ = 0;
  return true;
}

void* StepOperands::take(const void* like, std::int64_t elements, Dtype dtype) {
  if (!like) return nullptr;
  constexpr std::int64_t kAlignment = 256;
  const std::int64_t offset = alignment_of(like) % kAlignment;
  auto* data = block_ ? static_cast<std::byte*>(block_) + used_ + offset : nullptr;
  used_ += (offset + elements * static_cast<std::int64_t>(size_of(dtype)) + kAlignment - 1) / kAlignment * kAlignment;
  // Also for masks, which any bits are.
  if (block_) fill_normal(execution_, {data, elements, dtype}, ++seed_);
  return data;
}

}  // namespace fusegrad::detail
