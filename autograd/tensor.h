// An n-dimensional array on one context's device: contiguous, row-major, up to four axes.
//
// A Tensor is a handle; copies share memory, as do the views that `reshape` and `rows` return. Memory is owned and
// reference-counted, or borrowed from the caller, who then keeps it alive.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <vector>

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/dtype.h>
#include <fusegrad/autograd/shape.h>

namespace fusegrad {

class Tensor;

namespace detail {
struct Storage;
Tensor carve(const Tensor& flat, std::int64_t offset, const Shape& shape);
Storage* storage_of(const Tensor& tensor);
void retain(Storage* storage) noexcept;
void release(Storage* storage) noexcept;

/// Intrusive shared pointer to a Storage.
class StoragePtr {
 public:
  StoragePtr() = default;
  explicit StoragePtr(Storage* storage) : storage_(storage) {
    if (storage_) retain(storage_);
  }
  StoragePtr(const StoragePtr& other) : StoragePtr(other.storage_) {}
  StoragePtr(StoragePtr&& other) noexcept : storage_(other.storage_) { other.storage_ = nullptr; }
  StoragePtr& operator=(const StoragePtr& other) {
    StoragePtr copy(other);
    std::swap(storage_, copy.storage_);
    return *this;
  }
  StoragePtr& operator=(StoragePtr&& other) noexcept {
    std::swap(storage_, other.storage_);
    return *this;
  }
  ~StoragePtr() {
    if (storage_) release(storage_);
  }

  Storage* get() const { return storage_; }
  Storage* operator->() const { return storage_; }
  explicit operator bool() const { return storage_ != nullptr; }

 private:
  Storage* storage_ = nullptr;
};
}  // namespace detail

class Tensor {
 public:
  /// A handle to nothing, as is one that was moved from: `defined()` is false, and access to elements is a StateError.
  Tensor() = default;

  /// Uninitialised memory. Errors: OutOfMemoryError; ShapeError if the bytes do not fit 64 bits. What makes a tensor
  /// of its own below has the same errors.
  static Tensor empty(const Context& context, const Shape& shape, Dtype dtype);
  /// Every element is 0.
  static Tensor zeros(const Context& context, const Shape& shape, Dtype dtype);
  /// Every element is `value`, rounded to `dtype`. Errors: ValueError if an integer dtype cannot hold it.
  static Tensor full(const Context& context, const Shape& shape, Dtype dtype, double value);
  /// A copy of `values`, in row-major order, as their own dtype. T: double, float, bf16, f16, std::int32_t or
  /// std::uint8_t. Errors: ShapeError if their number is not shape.size().
  template <class T>
  static Tensor from(const Context& context, const Shape& shape, std::span<const T> values);
  template <class T>
  static Tensor from(const Context& context, const Shape& shape, const std::vector<T>& values) {
    return from(context, shape, std::span<const T>(values));
  }
  template <class T>
  static Tensor from(const Context& context, const Shape& shape, std::initializer_list<T> values) {
    return from(context, shape, std::span<const T>(values.begin(), values.size()));
  }
  /// A tensor over the caller's memory on the context's device, which must outlive every handle and view of it.
  /// Memory: shape.size() elements, row-major, aligned to the element, and not const: a tensor may be written to.
  /// Errors: ValueError if `data` is null or not aligned.
  template <class T>
  static Tensor borrow(const Context& context, const Shape& shape, T* data) {
    static_assert(
        !std::is_const_v<T>,
        "Tensor::borrow: the memory must not be const, since a tensor may be written to; Tensor::from copies");
    if constexpr (!std::is_const_v<T>) return borrow_raw(context, shape, dtype_of<T>, data);
  }
  static Tensor borrow_raw(const Context& context, const Shape& shape, Dtype dtype, void* data);

  bool defined() const { return static_cast<bool>(storage_); }
  const Shape& shape() const { return shape_; }
  Dtype dtype() const { return dtype_; }
  std::int64_t size() const { return shape_.size(); }
  std::int64_t bytes() const { return shape_.size() * static_cast<std::int64_t>(size_of(dtype_)); }
  Context context() const;
  Device device() const { return context().device(); }

  /// The elements, for reading. Errors: DtypeError if T is not the tensor's type; DeviceError if it is not on the CPU.
  template <class T>
  std::span<const T> data() const {
    check_host_access(dtype_of<T>);
    return {static_cast<const T*>(raw()), static_cast<std::size_t>(size())};
  }
  /// The elements, for writing; marks the tensor as changed. Errors: as data().
  template <class T>
  std::span<T> mutable_data() {
    check_host_access(dtype_of<T>);
    return {static_cast<T*>(mutable_raw()), static_cast<std::size_t>(size())};
  }
  /// A host copy, from any device. Errors: DtypeError if T is not the tensor's type.
  template <class T>
  std::vector<T> to_vector() const;
  /// The only element, widened to double. Errors: ShapeError if there is not exactly one.
  double item() const;

  /// Overwrites the elements with `source`'s, from any context. Errors: ShapeError or DtypeError if they differ.
  void copy_from(const Tensor& source);
  template <class T>
  void copy_from(std::span<const T> values);
  template <class T>
  void copy_from(const std::vector<T>& values) {
    copy_from(std::span<const T>(values));
  }

  /// A copy as another floating-point dtype, rounded once to nearest even; or as f32 or f64 from an integer one.
  /// Errors: DtypeError for an integer dtype that is not the tensor's own.
  Tensor to(Dtype dtype) const;
  /// A copy on another context.
  Tensor to(const Context& context) const;
  /// A copy on the same context.
  Tensor clone() const;

  /// The same elements under another shape; shares memory. Errors: ShapeError if the sizes differ.
  Tensor reshape(const Shape& shape) const;
  /// Rows [begin, end) of the first axis; shares memory. Errors: ShapeError unless 0 <= begin <= end <= rows.
  Tensor rows(std::int64_t begin, std::int64_t end) const;

  /// Address of the first element on the tensor's device; null for an empty handle.
  const void* raw() const;
  /// As raw(), for writing; marks the tensor as changed.
  void* mutable_raw();
  /// Number of writes so far to the memory behind this tensor, views included.
  std::uint64_t version() const;
  /// True if no other handle or view shares this tensor's memory, and it is not borrowed.
  bool unique() const;
  /// True if both handles refer to the same memory block.
  bool shares_memory_with(const Tensor& other) const { return storage_.get() == other.storage_.get(); }

 private:
  friend Tensor detail::carve(const Tensor& flat, std::int64_t offset, const Shape& shape);
  friend detail::Storage* detail::storage_of(const Tensor& tensor);
  Tensor(detail::StoragePtr storage, const Shape& shape, Dtype dtype, std::int64_t byte_offset)
      : storage_(std::move(storage)), shape_(shape), byte_offset_(byte_offset), dtype_(dtype) {}
  static void check_from_host(const Context& context);
  void check_defined() const;
  void check_host_access(Dtype wanted) const;
  void copy_raw_to(void* host) const;
  void copy_raw_from(const void* host, std::int64_t count, Dtype dtype);

  detail::StoragePtr storage_;
  Shape shape_{0};
  std::int64_t byte_offset_ = 0;
  Dtype dtype_ = Dtype::f32;
};

template <class T>
Tensor Tensor::from(const Context& context, const Shape& shape, std::span<const T> values) {
  check_from_host(context);
  Tensor tensor = empty(context, shape, dtype_of<T>);
  tensor.copy_from(values);
  return tensor;
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  check_defined();
  if (dtype_of<T> != dtype_) check_host_access(dtype_of<T>);  // throws the DtypeError
  std::vector<T> values(static_cast<std::size_t>(size()));
  copy_raw_to(values.data());
  return values;
}

template <class T>
void Tensor::copy_from(std::span<const T> values) {
  copy_raw_from(values.data(), static_cast<std::int64_t>(values.size()), dtype_of<T>);
}

}  // namespace fusegrad
