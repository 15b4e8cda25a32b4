#include <cmath>
#include <limits>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/autograd/narrow.h>
#include <fusegrad/autograd/step_run.h>
#include <fusegrad/autograd/tensor.h>

namespace fusegrad {

using detail::require;

namespace detail {

void retain(Storage* storage) noexcept { storage->references.fetch_add(1, std::memory_order_relaxed); }

void release(Storage* storage) noexcept {
  if (storage->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  // The context may live only through this block: hold it until the block is back in its cache.
  const std::shared_ptr<ContextState> context = std::move(storage->context);
  const StoragePtr parent = std::move(storage->parent);
  context->memory().give_back(storage);
}

Tensor carve(const Tensor& flat, std::int64_t offset, const Shape& shape) {
  const auto element = static_cast<std::int64_t>(size_of(flat.dtype()));
  auto* data = static_cast<std::byte*>(flat.storage_->data) + flat.byte_offset_ + offset * element;
  const std::shared_ptr<ContextState>& context = flat.storage_->context;
  StoragePtr part = context->memory().borrow(data, static_cast<std::size_t>(shape.size() * element), context);
  part->parent = flat.storage_;
  return Tensor(std::move(part), shape, flat.dtype(), 0);
}

Storage* storage_of(const Tensor& tensor) { return tensor.storage_.get(); }

}  // namespace detail

Tensor Tensor::empty(const Context& context, const Shape& shape, Dtype dtype) {
  std::int64_t bytes = 0;
  require<ShapeError>(!__builtin_mul_overflow(shape.size(), static_cast<std::int64_t>(size_of(dtype)), &bytes),
                      "tensor: the bytes of a {} tensor of shape {} do not fit 64 bits", name_of(dtype), shape);
  context.state().check_usable();
  auto storage = context.state().memory().allocate(static_cast<std::size_t>(bytes), context.shared_state());
  return Tensor(std::move(storage), shape, dtype, 0);
}

Tensor Tensor::zeros(const Context& context, const Shape& shape, Dtype dtype) { return full(context, shape, dtype, 0); }

Tensor Tensor::full(const Context& context, const Shape& shape, Dtype dtype, double value) {
  return detail::visit_any(dtype, [&]<class T>() {
    if constexpr (std::is_integral_v<T>) {
      const bool fits = value >= std::numeric_limits<T>::min() && value <= std::numeric_limits<T>::max();
      require<ValueError>(fits && value == std::trunc(value), "tensor: {} has no value {}", name_of(dtype), value);
    }
    T element;
    if constexpr (std::is_integral_v<T>) {
      element = static_cast<T>(value);
    } else {
      element = detail::narrow<T>(value);
    }
    Tensor tensor = empty(context, shape, dtype);
    context.state().backend().fill(tensor.mutable_raw(), &element, sizeof(T), static_cast<std::size_t>(shape.size()));
    return tensor;
  });
}

Tensor Tensor::borrow_raw(const Context& context, const Shape& shape, Dtype dtype, void* data) {
  const std::size_t element = size_of(dtype);
  require<ValueError>(data != nullptr || shape.size() == 0, "tensor: borrowed memory must not be null");
  require<ValueError>(reinterpret_cast<std::uintptr_t>(data) % element == 0,
                      "tensor: borrowed memory must be aligned to its element, {} bytes", element);
  const auto bytes = static_cast<std::size_t>(shape.size()) * element;
  return Tensor(context.state().memory().borrow(data, bytes, context.shared_state()), shape, dtype, 0);
}

Context Tensor::context() const {
  check_defined();
  return Context(storage_->context);
}

double Tensor::item() const {
  check_defined();
  require<ShapeError>(size() == 1, "tensor: item() needs exactly one element, the shape is {}", shape_);
  return detail::visit_any(dtype_, [&]<class T>() {
    T value;
    copy_raw_to(&value);
    return static_cast<double>(value);
  });
}

void Tensor::copy_from(const Tensor& source) {
  check_defined();
  source.check_defined();
  require<ShapeError>(shape_ == source.shape_, "tensor: copy_from needs shape {}, got {}", shape_, source.shape_);
  require<DtypeError>(dtype_ == source.dtype_, "tensor: copy_from needs {}, got {}", name_of(dtype_),
                      name_of(source.dtype_));
  const auto count = static_cast<std::size_t>(bytes());
  storage_->context->check_usable();
  detail::Backend& backend = storage_->context->backend();
  if (storage_->context == source.storage_->context) {
    backend.copy_within(mutable_raw(), source.raw(), count);
  } else if (source.device().type == DeviceType::cpu) {
    storage_->context->check_host_copy("values were copied from the host");
    backend.copy_from_host(mutable_raw(), source.raw(), count);
  } else {
    std::vector<std::byte> host(count);
    source.copy_raw_to(host.data());
    storage_->context->check_host_copy("values were copied from another context");
    backend.copy_from_host(mutable_raw(), host.data(), count);
  }
}

Tensor Tensor::to(Dtype dtype) const {
  check_defined();
  if (dtype == dtype_) return clone();
  require<DtypeError>(is_floating(dtype), "tensor: to() needs a floating-point dtype, got {}", name_of(dtype));
  const Context owner = context();
  Tensor converted = empty(owner, shape_, dtype);
  owner.state().backend().convert(converted.mutable_raw(), dtype, raw(), dtype_, static_cast<std::size_t>(size()));
  return converted;
}

Tensor Tensor::to(const Context& context) const {
  check_defined();
  Tensor copy = empty(context, shape_, dtype_);
  copy.copy_from(*this);
  return copy;
}

Tensor Tensor::clone() const { return to(context()); }

Tensor Tensor::reshape(const Shape& shape) const {
  check_defined();
  require<ShapeError>(shape.size() == size(), "reshape: {} has {} elements, {} has {}", shape_, size(), shape,
                      shape.size());
  return Tensor(storage_, shape, dtype_, byte_offset_);
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t end) const {
  check_defined();
  require<ShapeError>(shape_.rank() >= 1 && begin >= 0 && begin <= end && end <= shape_[0],
                      "rows: [{}, {}) is not within the first axis of {}", begin, end, shape_);
  std::array<std::int64_t, Shape::kMaxRank> extents{end - begin};
  std::int64_t row = 1;
  for (int axis = 1; axis < shape_.rank(); ++axis) row *= extents[axis] = shape_[axis];
  const Shape shape(std::span<const std::int64_t>(extents.data(), static_cast<std::size_t>(shape_.rank())));
  return Tensor(storage_, shape, dtype_, byte_offset_ + begin * row * static_cast<std::int64_t>(size_of(dtype_)));
}

const void* Tensor::raw() const {
  return storage_ ? static_cast<const std::byte*>(storage_->data) + byte_offset_ : nullptr;
}

void* Tensor::mutable_raw() {
  check_defined();
  storage_->version.fetch_add(1, std::memory_order_relaxed);
  if (detail::StepRun* run = storage_->context->step_run()) run->writes(storage_);
  return static_cast<std::byte*>(storage_->data) + byte_offset_;
}

std::uint64_t Tensor::version() const { return storage_ ? storage_->version.load(std::memory_order_relaxed) : 0; }

bool Tensor::unique() const {
  return storage_ && !storage_->borrowed && storage_->references.load(std::memory_order_acquire) == 1;
}

void Tensor::check_from_host(const Context& context) {
  context.state().check_usable();
  context.state().check_host_copy("values were copied from the host");
}

void Tensor::check_defined() const { require<StateError>(defined(), "tensor: this handle is empty"); }

void Tensor::check_host_access(Dtype wanted) const {
  check_defined();
  require<DtypeError>(wanted == dtype_, "tensor: the dtype is {}, not {}", name_of(dtype_), name_of(wanted));
  require<DeviceError>(storage_->context->backend().device().type == DeviceType::cpu,
                       "tensor: data() needs a tensor on the CPU, this one is on {}; to_vector() copies it",
                       storage_->context->backend().device());
}

void Tensor::copy_raw_to(void* host) const {
  storage_->context->check_usable();
  storage_->context->check_host_copy("a tensor was read");
  storage_->context->backend().copy_to_host(host, raw(), static_cast<std::size_t>(bytes()));
}

void Tensor::copy_raw_from(const void* host, std::int64_t count, Dtype dtype) {
  check_defined();
  require<DtypeError>(dtype == dtype_, "tensor: the dtype is {}, not {}", name_of(dtype_), name_of(dtype));
  require<ShapeError>(count == size(), "tensor: shape {} needs {} values, got {}", shape_, size(), count);
  storage_->context->check_usable();
  storage_->context->check_host_copy("values were copied from the host");
  storage_->context->backend().copy_from_host(mutable_raw(), host, static_cast<std::size_t>(bytes()));
}

}  // namespace fusegrad
