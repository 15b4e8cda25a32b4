#include <algorithm>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/step_run.h>

namespace fusegrad::detail {

void StepRun::clear() {
  touched_.clear();
  valid_.clear();
  frozen_.clear();
  dependencies_.clear();
  written_.clear();
  kept_.clear();
}

void StepRun::touches(const std::shared_ptr<ParameterStore>& store) {
  if (std::ranges::find(touched_, store, &Touched::store) != touched_.end()) return;
  touched_.push_back({store, valid_.size()});
  for (const ParameterSlot& slot : store->slots()) {
    valid_.push_back(slot.gradient_valid);
    frozen_.push_back(slot.frozen);
  }
}

void StepRun::depends_on(const std::shared_ptr<const std::int64_t>& revision) {
  if (repeats_) dependencies_.push_back({revision, *revision});
}

void StepRun::writes(const StoragePtr& storage) {
  if (!repeats_ || storage->arena) return;
  const auto same = [&](const StoragePtr& other) { return other.get() == storage.get(); };
  if (std::ranges::none_of(written_, same)) written_.push_back(storage);
}

void StepRun::keeps(const Tensor& tensor) {
  if (repeats_) kept_.push_back(tensor);
}

void StepRun::check_gradients() const {
  for (const Touched& touched : touched_) {
    for (std::size_t i = 0; i < touched.store->slots().size(); ++i) {
      const ParameterSlot& slot = touched.store->slot(i);
      const bool valid = valid_[touched.first + i];
      require<StateError>(slot.gradient_valid == valid,
                          "step: the gradient of \"{}\" was {} when the step function began and is {} at its end, so "
                          "that a repetition would do something else; {}",
                          slot.name, valid ? "there" : "empty", slot.gradient_valid ? "there" : "empty",
                          slot.gradient_valid ? "step or clear it" : "clear it before the call");
    }
  }
}

void StepRun::check_repeatable() const {
  for (const Touched& touched : touched_) {
    for (std::size_t i = 0; i < touched.store->slots().size(); ++i) {
      const ParameterSlot& slot = touched.store->slot(i);
      require<StateError>(slot.gradient_valid == valid_[touched.first + i],
                          "step: the gradient of \"{}\" is {} and was {} when the step was captured; {}", slot.name,
                          slot.gradient_valid ? "there" : "empty", slot.gradient_valid ? "empty" : "there",
                          slot.gradient_valid ? "clear it before the call" : "reset() the step");
      require<StateError>(slot.frozen == frozen_[touched.first + i],
                          "step: \"{}\" was {} since the step was captured; reset() the step", slot.name,
                          slot.frozen ? "frozen" : "unfrozen");
    }
  }
  for (const Dependency& dependency : dependencies_) {
    require<StateError>(*dependency.revision == dependency.seen,
                        "step: an optimizer has loaded another state since the step was captured; reset() the step");
  }
}

void StepRun::restore_gradients() noexcept {
  for (const Touched& touched : touched_) {
    for (std::size_t i = 0; i < touched.store->slots().size(); ++i) {
      touched.store->slot(i).gradient_valid = valid_[touched.first + i];
    }
  }
}

}  // namespace fusegrad::detail
