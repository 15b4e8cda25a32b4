// What one run of a Step's function does that outlives the run. Not installed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/memory.h>
#include <fusegrad/autograd/parameter_store.h>
#include <fusegrad/autograd/tensor.h>

namespace fusegrad::detail {

/// A step function that is being captured needs more memory than its step has.
class ArenaTooSmall : public StateError {
 public:
  using StateError::StateError;
};

class StepRun {
 public:
  /// `repeats`: what is done will be repeated by a graph; then it is recorded what that reads and writes.
  explicit StepRun(bool repeats) : repeats_(repeats) {}
  /// Ready for another run; keeps its memory.
  void clear();

  /// The gradients of `store` are about to become valid or empty.
  void touches(const std::shared_ptr<ParameterStore>& store);
  /// `storage` is written to. What the step's arena owns, and nobody else sees, does not count.
  void writes(const StoragePtr& storage);
  /// The run reads `tensor`, which must stay.
  void keeps(const Tensor& tensor);

  /// Errors: StateError that names a parameter whose gradient is not as it was at the beginning.
  void check_gradients() const;
  /// True if an optimizer took a step.
  bool optimizes() const { return !dependencies_.empty(); }
  /// What a graph of the run has of its own: it must not be repeated once `*revision` has changed.
  void depends_on(const std::shared_ptr<const std::int64_t>& revision);
  /// Errors: StateError that says what is not as it was at the beginning, so that a graph of the run would go wrong: a
  /// parameter's gradient is there or empty, a parameter is frozen or not, an optimizer has loaded another state.
  void check_repeatable() const;
  /// Makes the gradients valid or empty as they were at the beginning.
  void restore_gradients() noexcept;

  /// Memory that every repetition of the run writes to.
  std::vector<StoragePtr> take_written() { return std::move(written_); }

 private:
  struct Touched {
    std::shared_ptr<ParameterStore> store;
    std::size_t first;  // of its parameters in valid_ and frozen_
  };
  struct Dependency {
    std::shared_ptr<const std::int64_t> revision;
    std::int64_t seen;
  };
  bool repeats_;
  std::vector<Touched> touched_;
  std::vector<bool> valid_;   // gradients at the beginning
  std::vector<bool> frozen_;  // parameters when they were touched first
  std::vector<Dependency> dependencies_;
  std::vector<StoragePtr> written_;
  std::vector<Tensor> kept_;
};

}  // namespace fusegrad::detail
