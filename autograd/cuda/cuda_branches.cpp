#include <algorithm>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/cuda/cuda_branches.h>
#include <fusegrad/autograd/cuda/device_memory.h>

namespace fusegrad::detail {

void CudaBranches::start(bool expects_updates) {
  main_ = &backend_.stream();
  event_count_ = 0;
  uses_.clear();
  first_use_ = last_use_ + 1;
  joined_use_ = update_use_ = last_use_;
  first_point_ = first_valid_point_ = first_point_ + static_cast<std::int64_t>(points_.size());
  points_.clear();
  sweep_begin_ = 0;
  updates_ = sweeping_ = dirty_ = made_room_ = false;
  expects_updates_ = expects_updates;
  waiting_ = 0;
  line_ = Line::main;
}

void CudaBranches::stop(bool captured) noexcept {
  line_ = Line::main;
  if (dirty_ && !captured) {
    // The step failed. What comes next on the main line must not meet its work.
    try {
      join_all();
    } catch (...) {
      // Whoever waits for the GPU is told.
    }
  }
  sweeping_ = dirty_ = false;
  joined_use_ = last_use_;
}

void CudaBranches::synchronize() const {
  beside_.synchronize();
  update_.synchronize();
}

Event& CudaBranches::record(const Stream& stream) {
  if (event_count_ == events_.size()) events_.push_back(std::make_unique<Event>());
  Event& event = *events_[event_count_++];
  event.record(stream.get());
  return event;
}

void CudaBranches::begin_beside() {
  record(*main_).make_wait(beside_.get());
  uses_.push_back(nullptr);
  ++last_use_;
  line_ = Line::beside;
  dirty_ = true;
  backend_.switch_to(&beside_);
}

void CudaBranches::end_beside() noexcept {
  line_ = Line::main;
  backend_.switch_to(main_);
  try {
    uses_.back() = &record(beside_);
  } catch (...) {
    // Whoever wants to wait for it reports that.
  }
}

void CudaBranches::join_use(std::int64_t use) {
  if (use <= joined_use_) return;
  const Event* end = uses_[static_cast<std::size_t>(use - first_use_)];
  require<CudaError>(end != nullptr, "cuda: the end of the work beside the main line could not be recorded");
  end->make_wait(main_->get());
  joined_use_ = use;
}

void CudaBranches::join(const Storage& storage) { join_use(storage.branch_use); }

void CudaBranches::join_all() {
  join_use(last_use_);
  if (updates_) {
    record(update_).make_wait(main_->get());
    updates_ = false;
  }
  first_valid_point_ = first_point_ + static_cast<std::int64_t>(points_.size());
  dirty_ = made_room_ = false;
  waiting_ = 0;
}

std::int64_t CudaBranches::mark() {
  points_.push_back({&record(*main_), last_use_});
  dirty_ = true;
  return first_point_ + static_cast<std::int64_t>(points_.size()) - 1;
}

void CudaBranches::begin_update(std::int64_t point) {
  wait_in_update(point);
  line_ = Line::update;
  updates_ = dirty_ = true;
  backend_.switch_to(&update_);
}

void CudaBranches::wait_in_update(std::int64_t point) {
  const Point& waited = points_[static_cast<std::size_t>(point - first_point_)];
  waited.main->make_wait(update_.get());
  if (waited.use <= update_use_ || waited.use < first_use_) return;
  const Event* end = uses_[static_cast<std::size_t>(waited.use - first_use_)];
  require<CudaError>(end != nullptr, "cuda: the end of the work beside the main line could not be recorded");
  end->make_wait(update_.get());
  update_use_ = waited.use;
}

void CudaBranches::end_update() noexcept {
  line_ = Line::main;
  backend_.switch_to(main_);
}

}  // namespace fusegrad::detail
