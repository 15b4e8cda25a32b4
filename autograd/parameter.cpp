#include <algorithm>
#include <set>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/parameter_store.h>
#include <fusegrad/autograd/step_run.h>

namespace fusegrad {

using detail::ParameterSlot;
using detail::ParameterStore;
using detail::require;

namespace detail {

std::size_t ParameterStore::add(std::string name, const Shape& shape, Initializer initializer) {
  require<StateError>(!laid_out(), "parameter set: \"{}\" cannot be added, the set is already in use", name);
  const bool printable = std::ranges::none_of(name, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  require<ValueError>(!name.empty() && name.size() <= 256 && printable,
                      "parameter set: a name must have 1 to 256 bytes and no control characters, got {} bytes",
                      name.size());
  require<ValueError>(std::ranges::none_of(slots_, [&](const ParameterSlot& slot) { return slot.name == name; }),
                      "parameter set: there is already a parameter named \"{}\"", name);
  require<ValueError>(static_cast<bool>(initializer), "parameter set: \"{}\" has no initializer", name);
  constexpr std::int64_t kMostValues = std::int64_t{1} << 59;  // their bytes fit 64 bits in every dtype
  require<ShapeError>(shape.size() <= kMostValues - flat_size_,
                      "parameter set: with \"{}\" of shape {} there are more than 2^59 values", name, shape);
  ParameterSlot slot;
  slot.name = std::move(name);
  slot.shape = shape;
  slot.offset = flat_size_;
  slot.initializer = std::move(initializer);
  slots_.push_back(std::move(slot));
  flat_size_ += (shape.size() + kSlotElements - 1) / kSlotElements * kSlotElements;
  return slots_.size() - 1;
}

void ParameterStore::truncate(std::size_t count) noexcept {
  if (count >= slots_.size()) return;
  flat_size_ = slots_[count].offset;
  slots_.erase(slots_.begin() + static_cast<std::ptrdiff_t>(count), slots_.end());
}

void ParameterStore::lay_out() {
  if (laid_out()) return;
  const OutsideStep outside(context_.state());
  const Dtype wide = accumulation_dtype(dtype_);
  Tensor masters = Tensor::zeros(context_, {flat_size_}, wide);
  Tensor values = dtype_ == wide ? masters : Tensor::zeros(context_, {flat_size_}, dtype_);
  Tensor gradients = Tensor::zeros(context_, {flat_size_}, wide);
  struct Views {
    Tensor value, master, gradient;
  };
  std::vector<Views> views(slots_.size());
  std::vector<float> initial;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const ParameterSlot& slot = slots_[i];
    Views& view = views[i];
    view.master = carve(masters, slot.offset, slot.shape);
    view.value = dtype_ == wide ? view.master : carve(values, slot.offset, slot.shape);
    view.gradient = carve(gradients, slot.offset, slot.shape);
    initial.assign(static_cast<std::size_t>(slot.shape.size()), 0.0f);
    slot.initializer(initial);
    const Tensor host = Tensor::from(Context::cpu({.threads = 1}), slot.shape, initial);
    view.master.copy_from(wide == Dtype::f32 ? host : host.to(wide));
    if (dtype_ != wide) view.value.copy_from(host.to(dtype_));
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].value = std::move(views[i].value);
    slots_[i].master = std::move(views[i].master);
    slots_[i].gradient = std::move(views[i].gradient);
    slots_[i].initializer = nullptr;
  }
  masters_ = std::move(masters);
  gradients_ = std::move(gradients);
  values_ = std::move(values);
}

}  // namespace detail

namespace {

ParameterSlot& slot_of(const Parameter& parameter) {
  require<StateError>(parameter.defined(), "parameter: this handle is empty");
  return parameter.store().slot(parameter.index());
}

ParameterSlot& laid_out_slot(const Parameter& parameter) {
  ParameterSlot& slot = slot_of(parameter);
  parameter.store().lay_out();
  return slot;
}

}  // namespace

const std::string& Parameter::name() const { return slot_of(*this).name; }
const Shape& Parameter::shape() const { return slot_of(*this).shape; }
Dtype Parameter::dtype() const { return slot_of(*this), store_->dtype(); }
Context Parameter::context() const { return slot_of(*this), store_->context(); }

Tensor Parameter::value() const { return laid_out_slot(*this).value; }
Tensor Parameter::master() const { return laid_out_slot(*this).master; }

Tensor Parameter::gradient() const {
  const ParameterSlot& slot = laid_out_slot(*this);
  require<StateError>(slot.gradient_valid, "parameter \"{}\": the gradient is empty; run backward first", slot.name);
  return slot.gradient;
}

bool Parameter::has_gradient() const { return slot_of(*this).gradient_valid; }

void Parameter::clear_gradient() const {
  ParameterSlot& slot = slot_of(*this);
  if (detail::StepRun* run = store_->context().state().step_run()) run->touches(store_);
  slot.gradient_valid = false;
}

void Parameter::assign(const Tensor& values) const {
  ParameterSlot& slot = laid_out_slot(*this);
  require<ShapeError>(values.shape() == slot.shape, "parameter \"{}\": the shape is {}, got {}", slot.name, slot.shape,
                      values.shape());
  require<DtypeError>(values.defined() && is_floating(values.dtype()),
                      "parameter \"{}\": values must be floating-point, got {}", slot.name, name_of(values.dtype()));
  const Tensor master = values.to(slot.master.dtype());
  const Tensor value = master.to(slot.value.dtype());
  slot.master.copy_from(master);
  if (!slot.value.shares_memory_with(slot.master)) slot.value.copy_from(value);
}

void Parameter::freeze() const { slot_of(*this).frozen = true; }
void Parameter::unfreeze() const { slot_of(*this).frozen = false; }
bool Parameter::frozen() const { return slot_of(*this).frozen; }

ParameterSet::ParameterSet(const Context& context, Dtype dtype) {
  require<DtypeError>(is_floating(dtype), "parameter set: the dtype must be f64, f32, bf16 or f16, got {}",
                      name_of(dtype));
  store_ = std::make_shared<ParameterStore>(context, dtype);
}

Parameter ParameterSet::add(std::string name, const Shape& shape, Initializer initializer) {
  return Parameter(store_, store_->add(std::move(name), shape, std::move(initializer)));
}

const Context& ParameterSet::context() const { return store_->context(); }
Dtype ParameterSet::dtype() const { return store_->dtype(); }
std::size_t ParameterSet::size() const { return store_->slots().size(); }

Parameter ParameterSet::operator[](std::size_t index) const {
  require<ValueError>(index < size(), "parameter set: there is no parameter {}, the set has {}", index, size());
  return Parameter(store_, index);
}

Parameter ParameterSet::operator[](std::string_view name) const {
  const auto found = std::ranges::find(store_->slots(), name, &ParameterSlot::name);
  require<ValueError>(found != store_->slots().end(), "parameter set: there is no parameter named \"{}\"", name);
  return Parameter(store_, static_cast<std::size_t>(found - store_->slots().begin()));
}

bool ParameterSet::contains(std::string_view name) const {
  return std::ranges::find(store_->slots(), name, &ParameterSlot::name) != store_->slots().end();
}

std::int64_t ParameterSet::value_count() const {
  std::int64_t count = 0;
  for (const ParameterSlot& slot : store_->slots()) count += slot.shape.size();
  return count;
}

void ParameterSet::clear_gradients() const {
  if (detail::StepRun* run = store_->context().state().step_run()) run->touches(store_);
  for (ParameterSlot& slot : store_->slots()) slot.gradient_valid = false;
}

}  // namespace fusegrad
