#include <fusegrad/autograd/branches.h>

namespace fusegrad::detail {

void Branches::begin_sweep() {
  // Work beside the main line is looked after by the sweep; optimizers' is not.
  if (updates_) join_all();
  sweep_begin_ = mark();
  sweeping_ = true;
}

Beside::Beside(const Context& context, std::initializer_list<const Tensor*> reads)
    : branches_(context.state().branches()) {
  if (!branches_) return;
  branches_->begin_beside();
  for (const Tensor* tensor : reads) uses(*tensor);
}

Beside::~Beside() {
  if (branches_) branches_->end_beside();
}

void Beside::uses(const Tensor& tensor) {
  if (branches_ && tensor.defined()) storage_of(tensor)->branch_use = branches_->last_use();
}

}  // namespace fusegrad::detail
