// The flat storage behind a ParameterSet, as the engine and optimizers see it. Not installed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <fusegrad/autograd/parameter.h>

namespace fusegrad::detail {

/// One parameter's place in the flat buffers.
struct ParameterSlot {
  std::string name;
  Shape shape;
  std::int64_t offset = 0;  ///< in elements; a multiple of kSlotElements
  bool frozen = false;
  bool gradient_valid = false;
  double gradient_scale = 1;  ///< loss scale under which a valid gradient was made
  std::int64_t ready = 0;     ///< point of the context's branches from which it can be stepped; 0: none
  Initializer initializer;    ///< empty once the store is laid out
  // Views of the flat buffers, each with a version of its own; set when the store is laid out.
  Tensor value;
  Tensor master;
  Tensor gradient;
};

class ParameterStore {
 public:
  /// Slots start at multiples of 128 elements: 256 bytes in every dtype, and whole vectors in every kernel.
  static constexpr std::int64_t kSlotElements = 128;

  ParameterStore(const Context& context, Dtype dtype) : context_(context), dtype_(dtype) {}

  const Context& context() const { return context_; }
  Dtype dtype() const { return dtype_; }
  std::size_t add(std::string name, const Shape& shape, Initializer initializer);
  /// Takes back all but the first `count` parameters of an open store.
  void truncate(std::size_t count) noexcept;
  std::vector<ParameterSlot>& slots() { return slots_; }
  ParameterSlot& slot(std::size_t index) { return slots_[index]; }

  /// Allocates the flat buffers and runs the initialisers, once; a failure leaves the store open and unchanged.
  void lay_out();
  bool laid_out() const { return values_.defined(); }

  /// Flat buffers of flat_size() elements; padding between slots is zero.
  std::int64_t flat_size() const { return flat_size_; }
  Tensor& values() { return values_; }
  Tensor& masters() { return masters_; }      ///< values() itself unless dtype() is 16-bit
  Tensor& gradients() { return gradients_; }  ///< accumulation_dtype(dtype())

 private:
  Context context_;
  Dtype dtype_;
  std::vector<ParameterSlot> slots_;
  std::int64_t flat_size_ = 0;
  Tensor values_;
  Tensor masters_;
  Tensor gradients_;
};

/// Takes back the parameters that were added since it was made, unless they are kept: a module adds all or none.
class Addition {
 public:
  explicit Addition(ParameterStore& store) : store_(store), count_(store.slots().size()) {}
  ~Addition() {
    if (!kept_) store_.truncate(count_);
  }
  Addition(const Addition&) = delete;
  Addition& operator=(const Addition&) = delete;

  void keep() { kept_ = true; }

 private:
  ParameterStore& store_;
  std::size_t count_;
  bool kept_ = false;
};

}  // namespace fusegrad::detail
