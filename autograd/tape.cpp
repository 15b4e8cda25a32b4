#include <algorithm>
#include <utility>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/parameter_store.h>
#include <fusegrad/autograd/step_run.h>
#include <fusegrad/autograd/tape_state.h>

namespace fusegrad {

using detail::Node;
using detail::NodeKind;
using detail::require;
using detail::TapeState;

namespace detail {

void* RuleMemory::allocate(std::size_t bytes, std::size_t alignment) {
  used_ = (used_ + alignment - 1) / alignment * alignment;
  if (chunk_ < chunks_.size() && used_ + bytes > kChunkBytes) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) chunks_.push_back(std::make_unique_for_overwrite<std::byte[]>(kChunkBytes));
  return chunks_[chunk_].get() + std::exchange(used_, used_ + bytes);
}

void TapeState::open(const Context& new_context, const TapeOptions& options) {
  context = new_context;
  mode = options.mode;
  fusion = options.fusion.value_or(new_context.fusion());
  branches = options.branches;
}

void TapeState::close() noexcept {
  clear();
  const Context owner = *std::exchange(context, std::nullopt);
  try {
    owner.state().idle_tapes().push_back(shared_from_this());
  } catch (const std::bad_alloc&) {
    // Then the next tape makes its own storage.
  }
}

void TapeState::clear() {
  ++generation;
  for (Node& node : nodes) {
    if (node.rule) node.rule->~Rule();
  }
  nodes.clear();
  inputs.clear();
  parameters.clear();
  hooks.clear();
  slots.clear();
  saved.clear();
  rules.rewind();
  spent = false;
}

Var TapeState::add(const Node& node, std::span<const std::uint32_t> node_inputs, const Tensor& value) {
  if (mode == Mode::inference) return Var(shared_from_this(), kUnrecorded, generation, value);
  require<StateError>(nodes.size() < UINT32_MAX, "tape: more than {} nodes", UINT32_MAX);
  const auto index = static_cast<std::uint32_t>(nodes.size());
  const auto first_input = static_cast<std::uint32_t>(inputs.size());
  inputs.insert(inputs.end(), node_inputs.begin(), node_inputs.end());
  nodes.push_back(node);  // last: the node owns its rule only if nothing has thrown
  nodes.back().first_input = first_input;
  nodes.back().input_count = static_cast<std::uint8_t>(node_inputs.size());
  nodes.back().shape = value.shape();
  nodes.back().dtype = value.dtype();
  nodes.back().value = value.raw();
  return Var(shared_from_this(), index, generation, value);
}

Var TapeState::add_leaf(NodeKind kind, std::string_view op, const Tensor& value, bool needs_gradient) {
  check_open(op);
  require<DtypeError>(value.defined() && is_floating(value.dtype()), "{}: the tensor must be floating-point, got {}",
                      op, value.defined() ? name_of(value.dtype()) : "an empty handle");
  require<DeviceError>(value.context() == *context,
                       "{}: the tensor must be on the tape's context ({}), got one on another context ({})", op,
                       context->device(), value.device());
  Node node;
  node.op = op;
  node.kind = kind;
  node.needs_gradient = needs_gradient && mode == Mode::training;
  node.kept = true;
  if (StepRun* run = context->state().step_run(); run && kind != NodeKind::parameter) run->keeps(value);
  return add(node, {}, value);
}

const Node& TapeState::node(const Var& var, std::string_view who) const {
  static const Node unrecorded{.op = "a value on an inference tape", .kept = true};
  const std::uint32_t index = check(var, who);
  return index == kUnrecorded ? unrecorded : nodes[index];
}

std::uint32_t TapeState::differentiable(const Var& var, std::string_view who) const {
  const Node& checked = node(var, who);
  require<StateError>(checked.needs_gradient,
                      "{}: {} depends on nothing that gets a gradient: no variable, no unfrozen parameter", who,
                      checked.op);
  check_open(who);
  return var.index_;
}

Var TapeState::add_parameter(const Parameter& parameter) {
  check_open("parameter");
  require<StateError>(parameter.defined(), "parameter: this handle is empty");
  const Tensor value = parameter.value();
  if (mode == Mode::inference) return add_leaf(NodeKind::parameter, "parameter", value, false);
  // One leaf a parameter, however often it is used: when that leaf's turn comes, all contributions have been made.
  const bool wanted = !parameter.frozen();
  for (const ParameterLeaf& leaf : parameters) {
    if (leaf.parameter == parameter && nodes[leaf.node].needs_gradient == wanted) {
      return Var(shared_from_this(), leaf.node, generation, value);
    }
  }
  if (StepRun* run = context->state().step_run()) run->keeps(value);
  parameters.push_back({parameter, static_cast<std::uint32_t>(nodes.size())});
  try {
    Var leaf = add_leaf(NodeKind::parameter, "parameter", value, wanted);
    nodes.back().parameter = static_cast<std::uint32_t>(parameters.size() - 1);
    return leaf;
  } catch (...) {
    parameters.pop_back();
    throw;
  }
}

void TapeState::check_open(std::string_view who) const {
  require<StateError>(!sweeping, "{}: a gradient hook may not change the tape while backward runs", who);
  require<StateError>(!spent,
                      "{}: this tape was used by backward; reset it, make a new one, or call backward with "
                      "{{.keep = true}}",
                      who);
}

std::uint32_t TapeState::check(const Var& var, std::string_view who) const {
  require<StateError>(var.state_ != nullptr, "{}: the Var is an empty handle", who);
  require<StateError>(var.generation_ == var.state_->generation && var.state_->context.has_value(),
                      "{}: the Var is stale: its tape was reset or destroyed", who);
  require<StateError>(var.state_.get() == this, "{}: the Var belongs to another tape", who);
  return var.index_;
}

}  // namespace detail

bool Var::needs_gradient() const {
  require<StateError>(defined(), "var: this handle is empty");
  return state_->node(*this, "var").needs_gradient;
}

const Tensor& Var::value() const {
  require<StateError>(defined(), "value: the Var is an empty handle");
  const Node& node = state_->node(*this, "value");
  require<StateError>(node.kept || !state_->spent,
                      "value: the value of {} was released by backward; name it with tape.keep() before", node.op);
  return value_;
}

Tape::Tape(const Context& context, const TapeOptions& options) {
  auto& idle = context.state().idle_tapes();
  if (idle.empty()) {
    state_ = std::make_shared<TapeState>();
  } else {
    state_ = std::move(idle.back());
    idle.pop_back();
  }
  state_->open(context, options);
}

Tape::~Tape() { state_->close(); }

const Context& Tape::context() const { return *state_->context; }
Mode Tape::mode() const { return state_->mode; }
Fusion Tape::fusion() const { return state_->fusion; }

Var Tape::input(const Tensor& value) { return state_->add_leaf(NodeKind::input, "input", value, false); }
Var Tape::variable(const Tensor& value) { return state_->add_leaf(NodeKind::variable, "variable", value, true); }

Var Tape::parameter(const Parameter& parameter) { return state_->add_parameter(parameter); }

void Tape::backward(const Var& loss, const BackwardOptions& options) { state_->backward(loss, std::nullopt, options); }

void Tape::backward(const Var& y, const Tensor& seed, const BackwardOptions& options) {
  state_->backward(y, seed, options);
}

bool Tape::has_gradient(const Var& var) const {
  const Node& node = state_->node(var, "has_gradient");
  return (node.kind == NodeKind::variable || node.retained) && var.index_ < state_->slots.size() &&
         state_->slots[var.index_].gradient.defined();
}

Tensor Tape::gradient(const Var& var) const {
  const Node& node = state_->node(var, "gradient");
  require<StateError>(node.kind == NodeKind::variable || node.retained,
                      "gradient: {} is neither a variable nor named to retain_gradient", node.op);
  require<StateError>(has_gradient(var), "gradient: {} has no gradient; backward has not reached it", node.op);
  return state_->slots[var.index_].gradient;
}

void Tape::retain_gradient(const Var& var) {
  state_->nodes[state_->differentiable(var, "retain_gradient")].retained = true;
}

void Tape::on_gradient(const Var& var, GradientHook hook) {
  const std::uint32_t index = state_->differentiable(var, "on_gradient");
  require<ValueError>(static_cast<bool>(hook), "on_gradient: the hook is empty");
  state_->hooks.emplace_back(index, std::move(hook));
  state_->nodes[index].hooked = true;
}

void Tape::keep(const Var& var) {
  const std::uint32_t index = state_->check(var, "keep");
  state_->check_open("keep");
  if (index != detail::kUnrecorded) state_->nodes[index].kept = true;
}

void Tape::reset() {
  require<StateError>(!state_->sweeping, "reset: a gradient hook may not reset the tape while backward runs");
  state_->clear();
}

std::vector<Parameter> Tape::parameters() const {
  std::vector<Parameter> wanted;
  for (const detail::ParameterLeaf& leaf : state_->parameters) {
    if (state_->nodes[leaf.node].needs_gradient) wanted.push_back(leaf.parameter);
  }
  return wanted;
}

std::int64_t Tape::size() const { return static_cast<std::int64_t>(state_->nodes.size()); }

std::int64_t Tape::saved_bytes() const {
  std::int64_t bytes = 0;
  for (const Node& node : state_->nodes) bytes += node.rule ? node.saved_bytes : 0;
  return bytes;
}

TapeMemory Tape::memory() const { return state_->memory(); }

std::string Tape::explain(ExplainFormat format) const {
  return format == ExplainFormat::json ? state_->explain_json() : state_->explain();
}

void Rule::save(const Tensor& tensor) { saved_[static_cast<std::size_t>(saved_count_++)] = {tensor, tensor.version()}; }

Var parameter_beside(const Var& x, const Parameter& parameter) {
  require<StateError>(x.defined(), "parameter: the Var is an empty handle");
  x.state_->check(x, "parameter");
  return x.state_->add_parameter(parameter);
}

Recording::Recording(std::string_view op, std::initializer_list<std::reference_wrapper<const Var>> inputs) : op_(op) {
  for (const Var& input : inputs) {
    require<StateError>(input.defined(), "{}: an input is an empty Var", op);
    if (!state_) state_ = input.state_;
    differentiable_ |= state_->node(input, op).needs_gradient;
    state_->check_open(op);
    inputs_[static_cast<std::size_t>(input_count_++)] = &input;
  }
  range_ = context().state().profile(detail::ProfilePhase::forward, op);
}

const Context& Recording::context() const { return *state_->context; }
Fusion Recording::fusion() const { return state_->fusion; }
BranchLog* Recording::branches() const { return state_->branches; }
const Tensor& Recording::input(int index) const { return inputs_[static_cast<std::size_t>(index)]->value_; }

bool Recording::needs(int index) const {
  const std::uint32_t node = inputs_[static_cast<std::size_t>(index)]->index_;
  return node != detail::kUnrecorded && state_->nodes[node].needs_gradient;
}

void* Recording::rule_memory(std::size_t bytes, std::size_t alignment) const {
  return state_->rules.allocate(bytes, alignment);
}

Var Recording::add_node(const Tensor& y, Rule* rule) {
  Node node;
  node.op = op_;
  node.rule = rule;
  node.needs_gradient = differentiable_;
  node.forward_notes = notes_;
  if (range_.traced()) [[unlikely]] {
    range_.output(y.shape(), y.dtype());
    for (const std::string_view note : notes_) range_.note(note);
  }
  std::array<std::uint32_t, kMaxInputs> indices{};
  for (int i = 0; i < input_count_; ++i) {
    indices[static_cast<std::size_t>(i)] = inputs_[static_cast<std::size_t>(i)]->index_;
  }
  const std::size_t saved_before = state_->saved.size();
  try {
    if (rule) {
      for (const Saved& saved : rule->saved()) {
        node.saved_bytes += saved.tensor.bytes();
        state_->saved.push_back({saved.tensor.raw(), saved.tensor.bytes()});
      }
    }
    return state_->add(node, std::span(indices).first(static_cast<std::size_t>(input_count_)), y);
  } catch (...) {
    state_->saved.resize(saved_before);
    if (rule) rule->~Rule();
    throw;
  }
}

}  // namespace fusegrad
