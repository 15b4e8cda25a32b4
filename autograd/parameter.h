// Trainable values in flat storage.
//
// A ParameterSet lays its parameters out in flat buffers (values, gradients, and fp32 master weights where values are
// 16-bit), so that an optimizer step is one pass. A set is open while modules add to it and is laid out once, by its
// first use; from then on adding is an error.
//
// Each parameter's gradient is either *empty* or *valid*. Backward writes to an empty one and adds to a valid one;
// `optimizer.step()` and `clear_gradients()` make it empty again. Nothing is ever filled with zeros.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <fusegrad/autograd/tensor.h>

namespace fusegrad {

namespace detail {
class ParameterStore;
}

/// Fills the initial values of one parameter, in fp32 (fp64 for f64 parameters they are widened).
using Initializer = std::function<void(std::span<float> values)>;

/// A handle to one parameter of a set. Copies share state and keep the set's storage alive.
class Parameter {
 public:
  Parameter() = default;  ///< a handle to nothing

  bool defined() const { return store_ != nullptr; }
  const std::string& name() const;
  const Shape& shape() const;
  Dtype dtype() const;
  Context context() const;

  /// The values, in dtype(): a view of the flat storage. For 16-bit parameters this is what products read; writing to
  /// it is undone by the next optimizer step, which rounds the master weights again: use assign().
  Tensor value() const;
  /// The values an optimizer steps: value() itself for f64 and f32, the fp32 master weights for bf16 and f16.
  Tensor master() const;
  /// The gradient, f32 (f64 for f64), times the loss scale that backward was given. Errors: StateError if it is empty.
  Tensor gradient() const;
  bool has_gradient() const;
  /// Empties the gradient.
  void clear_gradient() const;

  /// Sets the values from a tensor of the same shape, in master precision or any floating-point dtype; 16-bit values
  /// are the rounded masters. Errors: ShapeError; DtypeError.
  void assign(const Tensor& values) const;

  /// A frozen parameter gets no gradient, costs no work in backward and is not stepped. Tapes take note of it when they
  /// record the parameter: what was recorded before keeps its gradient.
  void freeze() const;
  void unfreeze() const;
  bool frozen() const;

  bool operator==(const Parameter&) const = default;

  /// For the engine and optimizers.
  Parameter(std::shared_ptr<detail::ParameterStore> store, std::size_t index)
      : store_(std::move(store)), index_(index) {}
  detail::ParameterStore& store() const { return *store_; }
  const std::shared_ptr<detail::ParameterStore>& shared_store() const { return store_; }
  std::size_t index() const { return index_; }

 private:
  std::shared_ptr<detail::ParameterStore> store_;
  std::size_t index_ = 0;
};

/// A shared handle to the parameters of one or more modules; survives a moved or destroyed module.
class ParameterSet {
 public:
  /// An open set of parameters of `dtype` (f64, f32, bf16, f16) on `context`. Errors: DtypeError.
  explicit ParameterSet(const Context& context, Dtype dtype = Dtype::f32);
  // A move copies: no handle is ever empty.
  ParameterSet(const ParameterSet&) = default;
  ParameterSet& operator=(const ParameterSet&) = default;
  ~ParameterSet() = default;

  /// Adds a parameter. `name` is unique within the set, not empty, at most 256 bytes, without control characters.
  /// Errors: ValueError for the name or an empty initializer; ShapeError for more than 2^59 values in all; StateError
  /// once the set was used: by an optimizer, a tape, a file of weights, or a look at a value.
  Parameter add(std::string name, const Shape& shape, Initializer initializer);

  const Context& context() const;
  Dtype dtype() const;
  std::size_t size() const;
  /// Errors: ValueError if there is no such index or name.
  Parameter operator[](std::size_t index) const;
  Parameter operator[](std::string_view name) const;
  bool contains(std::string_view name) const;
  /// Number of trainable values.
  std::int64_t value_count() const;
  void clear_gradients() const;

  class Iterator {
   public:
    using difference_type = std::ptrdiff_t;
    using value_type = Parameter;
    Iterator(const ParameterSet* set, std::size_t index) : set_(set), index_(index) {}
    Parameter operator*() const { return (*set_)[index_]; }
    Iterator& operator++() {
      ++index_;
      return *this;
    }
    bool operator==(const Iterator& other) const { return index_ == other.index_; }

   private:
    const ParameterSet* set_;
    std::size_t index_;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

  bool operator==(const ParameterSet&) const = default;

  /// For the engine, modules and optimizers.
  detail::ParameterStore& store() const { return *store_; }
  const std::shared_ptr<detail::ParameterStore>& shared_store() const { return store_; }

 private:
  std::shared_ptr<detail::ParameterStore> store_;
};

}  // namespace fusegrad
