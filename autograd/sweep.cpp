// The reverse sweep.
//
// First the edges on a path from the root that need a gradient are counted, per node: `mul(h, h)` is two edges, a
// consumer that does not lead to the root is none. Then the nodes are visited from the root back; since the tape is in
// topological order, a node's gradient is complete when its turn comes. A node's last edge is the one that may absorb
// its activation gradient.
//
// Buffers: a gradient that no one else holds is added to in place (d is c); one that is shared, because it was aliased,
// handed in as the seed or read by the user, is never written: the next contribution reads it as c and writes
// elsewhere. Sharing is what the reference count says, so nothing has to be tracked; and a gradient that work beside
// the main line still reads counts as shared.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>

#include <fusegrad/autograd/branches.h>
#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/autograd/narrow.h>
#include <fusegrad/autograd/parameter_store.h>
#include <fusegrad/autograd/step_run.h>
#include <fusegrad/autograd/tape_state.h>

namespace fusegrad {
namespace detail {
namespace {

/// True for powers of two whose reciprocal is exact in fp32, where optimizers divide by it: 2^-126 to 2^126.
bool is_loss_scale(double value) {
  int exponent = 0;
  return std::frexp(value, &exponent) == 0.5 && exponent >= -125 && exponent <= 127;
}

bool is_exact(double value, Dtype dtype) {
  return visit_floating(dtype, [&]<class T>() { return static_cast<double>(narrow<T>(value)) == value; });
}

/// True if a tensor that the node's rule saved was written to.
bool changed_since_forward(const Node& node) {
  if (!node.rule) return false;
  return std::ranges::any_of(node.rule->saved(),
                             [](const Saved& saved) { return saved.tensor.version() != saved.version; });
}

/// Tells the branches, where there are any, that the main line is the sweep's while this lives.
class SweepTurn {
 public:
  SweepTurn(Branches* branches, const std::optional<Tensor>& seed) : branches_(branches) {
    if (!branches_) return;
    branches_->begin_sweep();
    if (seed && branches_->is_busy(*storage_of(*seed))) branches_->join(*storage_of(*seed));
  }
  ~SweepTurn() {
    if (branches_) branches_->end_sweep();
  }
  SweepTurn(const SweepTurn&) = delete;
  SweepTurn& operator=(const SweepTurn&) = delete;

 private:
  Branches* branches_;
};

}  // namespace

void TapeState::backward(const Var& root, const std::optional<Tensor>& seed, const BackwardOptions& options) {
  constexpr std::string_view kWho = "backward";
  require<StateError>(root.defined(), "backward: the Var is an empty handle");
  check(root, kWho);
  require<StateError>(mode == Mode::training, "backward: an inference tape records nothing");
  const std::uint32_t index = differentiable(root, kWho);
  require<StateError>(nodes[index].kind == NodeKind::op, "backward: the root is a {} itself, not computed by any op",
                      nodes[index].op);
  require<ValueError>(is_loss_scale(options.loss_scale),
                      "backward: loss_scale must be a power of two from 2^-126 to 2^126, got {}", options.loss_scale);
  require<ValueError>(is_exact(options.loss_scale, root.dtype()),
                      "backward: loss_scale {} is out of range of a {} loss", options.loss_scale,
                      name_of(root.dtype()));
  require<ValueError>(options.loss_scale == 1 || !seed,
                      "backward: loss_scale goes with a scalar loss, not with a seed");
  if (seed) {
    require<StateError>(seed->defined(), "backward: the seed is an empty handle");
    require<ShapeError>(seed->shape() == root.shape(), "backward: the seed must have shape {}, got {}", root.shape(),
                        seed->shape());
    require<DtypeError>(seed->dtype() == root.dtype(), "backward: the seed must be {}, got {}", name_of(root.dtype()),
                        name_of(seed->dtype()));
    require<DeviceError>(seed->context() == *context, "backward: the seed must be on the tape's context");
  } else {
    require<ShapeError>(root.shape().size() == 1,
                        "backward: the root has shape {}, so it needs a seed of that shape; only a scalar needs none",
                        root.shape());
  }
  slots.resize(nodes.size());
  count_edges(index);
  check_saved(options.loss_scale);
  const SweepTurn turn(context->state().branches(), seed);
  const Tensor first = seed ? readable(*seed) : initial_gradient(root, options.loss_scale);

  // Everything that can be wrong with the call has been checked: from here on the tape changes.
  loss_scale_ = options.loss_scale;
  sweeping = true;
  nodes[index].kept = true;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].absorb = AbsorbOutcome::none;
    nodes[i].bias_absorbed = false;
    nodes[i].backward_notes = {};
    if (nodes[i].kind == NodeKind::op) slots[i].gradient = Tensor();
  }
  slots[index].gradient = first;
  try {
    sweep(options.keep);
    detach_from(seed ? *seed : first);
  } catch (...) {
    abandon();
    throw;
  }
  sweeping = false;
  spent = !options.keep;
}

Tensor TapeState::initial_gradient(const Var& root, double loss_scale) const {
  // A hook might write to what it is given.
  if (!hooks.empty()) return Tensor::full(*context, root.shape(), root.dtype(), loss_scale);
  return context->state().constant(root.dtype(), loss_scale).reshape(root.shape());
}

Tensor TapeState::readable(const Tensor& seed) const {
  // A parameter's gradient as the seed would be written while it is read.
  const bool is_destination = std::ranges::any_of(parameters, [&](const ParameterLeaf& leaf) {
    return slot_of(nodes[leaf.node]).gradient.shares_memory_with(seed);
  });
  return is_destination ? seed.clone() : seed;
}

void TapeState::count_edges(std::uint32_t root) {
  for (std::uint32_t index = 0; index < nodes.size(); ++index) {
    GradientSlot& slot = slots[index];
    slot.edges = 0;
    slot.reached = index == root;
    slot.absorbed = false;
    slot.bias_done = false;
  }
  for (std::uint32_t index = root + 1; index-- > 0;) {
    if (!slots[index].reached) continue;
    for (const std::uint32_t input : inputs_of(nodes[index])) {
      if (!nodes[input].needs_gradient) continue;
      slots[input].reached = true;
      ++slots[input].edges;
    }
  }
}

void TapeState::check_saved(double loss_scale) const {
  for (std::size_t index = 0; index < nodes.size(); ++index) {
    const Node& node = nodes[index];
    if (!slots[index].reached) continue;
    if (node.kind == NodeKind::parameter) {
      const ParameterSlot& slot = slot_of(node);
      require<StateError>(!slot.gradient_valid || slot.gradient_scale == loss_scale,
                          "backward: the gradient of \"{}\" was made with loss scale {}, not {}; step or clear first",
                          slot.name, slot.gradient_scale, loss_scale);
    }
    require<StateError>(!changed_since_forward(node),
                        "backward: a value that {} (node {}) saved was changed since forward", node.op, index);
  }
}

bool TapeState::is_read_below(std::uint32_t index, const ParameterSlot& slot) const {
  const auto overlap = [](const Tensor& a, const Tensor& b) {
    const auto begin = [](const Tensor& tensor) { return static_cast<const std::byte*>(tensor.raw()); };
    return a.defined() && b.defined() && begin(a) < begin(b) + b.bytes() && begin(b) < begin(a) + a.bytes();
  };
  return std::ranges::any_of(std::span(nodes).first(index), [&](const Node& node) {
    return node.rule && std::ranges::any_of(node.rule->saved(), [&](const Saved& saved) {
             return overlap(saved.tensor, slot.value) || overlap(saved.tensor, slot.master);
           });
  });
}

void TapeState::sweep(bool keep) {
  Branches* const branches = context->state().branches();
  std::int64_t point = 0;  // what the last rule left behind
  for (auto index = static_cast<std::uint32_t>(nodes.size()); index-- > 0;) {
    Node& node = nodes[index];
    if (slots[index].reached) visit(index);
    if (node.rule) point = 0;
    if (branches && node.kind == NodeKind::parameter) {
      if (point == 0) point = branches->mark();
      ParameterSlot& slot = slot_of(node);
      slot.ready = is_read_below(index, slot) ? 0 : point;
      if (slots[index].reached) branches->complete(slot.shape.size());
    }
    if (node.rule && !keep) {
      node.rule->~Rule();
      node.rule = nullptr;
    }
  }
}

void TapeState::detach_from(const Tensor& seed) {
  // The caller may write to the seed's memory, or free it, once backward returns; and nobody may write to a constant.
  for (std::size_t index = 0; index < nodes.size(); ++index) {
    Tensor& gradient = slots[index].gradient;
    if (gradient.defined() && gradient.shares_memory_with(seed)) gradient = gradient.clone();
  }
}

ParameterSlot& TapeState::slot_of(const Node& node) const {
  const Parameter& parameter = parameters[node.parameter].parameter;
  return parameter.store().slot(parameter.index());
}

void TapeState::visit(std::uint32_t index) {
  const Node& node = nodes[index];
  if (node.hooked) {
    if (Branches* branches = context->state().branches()) branches->join_all();
    const Tensor gradient =
        node.kind == NodeKind::parameter ? parameters[node.parameter].parameter.gradient() : slots[index].gradient;
    for (std::size_t i = 0; i < hooks.size(); ++i) {
      if (hooks[i].first == index) hooks[i].second(gradient);
    }
  }
  if (!node.rule) return;
  open_ = {};
  Backward turn(*this, index);
  ProfileRange range = context->state().profile(ProfilePhase::backward, node.op);
  node.rule->backward(turn);
  if (range.traced()) [[unlikely]] {
    range.output(node.shape, node.dtype);
    for (const std::string_view note : node.backward_notes) range.note(note);
    range.note(absorb_text(node));
  }
  require<StateError>(!changed_since_forward(node),
                      "backward: a value that {} (node {}) saved was changed while backward ran, by a hook or as the "
                      "gradient that it is",
                      node.op, index);
  for (int i = 0; i < node.input_count; ++i) {
    require<StateError>(!needs(index, i), "backward: the rule of {} left out the gradient of input {}", node.op, i);
  }
  if (!node.retained) slots[index].gradient = Tensor();
}

bool TapeState::needs(std::uint32_t node, int input) const {
  const std::uint32_t producer = inputs_of(nodes[node])[static_cast<std::size_t>(input)];
  if (!nodes[producer].needs_gradient || open_[static_cast<std::size_t>(input)].answered) return false;
  return !(slots[node].bias_done && nodes[node].rule->bias_input() == input);
}

TapeState::Destination TapeState::destination(std::uint32_t index) {
  const Node& node = nodes[index];
  Branches* const branches = context->state().branches();
  const auto is_busy = [&](const Tensor& tensor) { return branches && branches->is_busy(*storage_of(tensor)); };
  if (node.kind == NodeKind::parameter) {
    const ParameterSlot& slot = slot_of(node);
    if (is_busy(slot.gradient) && !branches->is_beside()) branches->join(*storage_of(slot.gradient));
    return {slot.gradient, slot.gradient_valid ? slot.gradient : Tensor()};
  }
  const Tensor& current = slots[index].gradient;
  if (current.unique() && !is_busy(current)) return {current, current};
  return {Tensor::empty(*context, node.shape, node.dtype), current};
}

void TapeState::contribute(std::uint32_t index, const Tensor& gradient) {
  const Node& node = nodes[index];
  --slots[index].edges;
  if (node.kind != NodeKind::parameter) {
    slots[index].gradient = gradient;
    return;
  }
  ParameterSlot& slot = slot_of(node);
  if (StepRun* run = context->state().step_run()) run->touches(parameters[node.parameter].parameter.shared_store());
  slot.gradient_valid = true;
  slot.gradient_scale = loss_scale_;
}

AbsorbOutcome TapeState::may_absorb(std::uint32_t index, Absorb consumer) const {
  const Node& node = nodes[index];
  if (!node.rule || !node.rule->activation_gradient()) return AbsorbOutcome::none;
  if (fusion == Fusion::off) return AbsorbOutcome::fusion_off;
  if (slots[index].edges != 1) return AbsorbOutcome::none;  // a later contribution may still absorb
  if (node.hooked || node.retained) return AbsorbOutcome::observed;
  return consumer == Absorb::yes ? AbsorbOutcome::absorbed : AbsorbOutcome::consumer_cannot;
}

int TapeState::bias_node_of(std::uint32_t index) const {
  const int input = nodes[index].rule->bias_input();
  if (input < 0) return -1;
  const std::uint32_t bias = inputs_of(nodes[index])[static_cast<std::size_t>(input)];
  return nodes[bias].needs_gradient ? static_cast<int>(bias) : -1;
}

GradientRequest TapeState::request(std::uint32_t node, int input, Absorb absorb) {
  const std::uint32_t producer = inputs_of(nodes[node])[static_cast<std::size_t>(input)];
  Open& open = open_[static_cast<std::size_t>(input)];
  Destination place = destination(producer);
  GradientRequest request{.d = place.d, .c = place.c};
  const AbsorbOutcome outcome = may_absorb(producer, absorb);
  if (outcome != AbsorbOutcome::none) nodes[producer].absorb = outcome;
  if (outcome == AbsorbOutcome::absorbed) {
    open.offered = true;
    request.absorb = nodes[producer].rule->activation_gradient();
    if (const int bias = bias_node_of(producer); bias >= 0) {
      Destination bias_place = destination(static_cast<std::uint32_t>(bias));
      request.bias_d = bias_place.d;
      request.bias_c = bias_place.c;
    }
  }
  open.d = request.d;
  open.bias_d = request.bias_d;
  return request;
}

void TapeState::written(std::uint32_t node, int input, const GradientAnswer& answer) {
  const std::uint32_t producer = inputs_of(nodes[node])[static_cast<std::size_t>(input)];
  Open& open = open_[static_cast<std::size_t>(input)];
  Counters& counters = context->state().counters();
  contribute(producer, open.d);
  if (open.offered && !answer.absorbed) nodes[producer].absorb = AbsorbOutcome::declined;
  if (answer.absorbed) {
    slots[producer].absorbed = true;
    ++counters.absorbed;
  }
  if (answer.bias_gradient) {
    contribute(static_cast<std::uint32_t>(bias_node_of(producer)), open.bias_d);
    slots[producer].bias_done = true;
    nodes[producer].bias_absorbed = true;
    ++counters.absorbed_biases;
  }
  open = {.answered = true};
}

bool TapeState::is_parameter(std::uint32_t node, int input) const {
  return nodes[inputs_of(nodes[node])[static_cast<std::size_t>(input)]].kind == NodeKind::parameter;
}

bool TapeState::may_request_together(std::uint32_t node, int a, int b) const {
  const auto producer = [&](int input) { return inputs_of(nodes[node])[static_cast<std::size_t>(input)]; };
  const auto is_bias_of = [&](int bias, int input) {
    return nodes[producer(input)].rule && bias_node_of(producer(input)) == static_cast<int>(producer(bias));
  };
  return producer(a) != producer(b) && !is_bias_of(a, b) && !is_bias_of(b, a);
}

bool TapeState::may_alias(std::uint32_t node, int input) const {
  const std::uint32_t producer = inputs_of(nodes[node])[static_cast<std::size_t>(input)];
  return nodes[producer].kind != NodeKind::parameter && !slots[producer].gradient.defined();
}

void TapeState::alias(std::uint32_t node, int input, const Tensor& gradient) {
  const std::uint32_t producer = inputs_of(nodes[node])[static_cast<std::size_t>(input)];
  const AbsorbOutcome outcome = may_absorb(producer, Absorb::no);
  if (outcome != AbsorbOutcome::none) nodes[producer].absorb = outcome;
  contribute(producer, gradient);
  ++context->state().counters().aliases;
  open_[static_cast<std::size_t>(input)] = {.answered = true};
}

void TapeState::abandon() noexcept {
  // Half a gradient is worse than none: what this sweep has reached is empty again, and the tape is spent.
  spent = true;
  for (std::size_t index = 0; index < slots.size(); ++index) {
    if (!slots[index].reached) continue;
    slots[index].gradient = Tensor();
    if (nodes[index].kind == NodeKind::parameter) slot_of(nodes[index]).gradient_valid = false;
  }
  open_ = {};
  sweeping = false;
}

}  // namespace detail

const Context& Backward::context() const { return *state_.context; }
Fusion Backward::fusion() const { return state_.fusion; }
const Tensor& Backward::dy() const { return state_.slots[node_].gradient; }
bool Backward::absorbed() const { return state_.slots[node_].absorbed; }
bool Backward::needs(int index) const { return state_.needs(node_, index); }
bool Backward::is_parameter(int index) const { return state_.is_parameter(node_, index); }
bool Backward::may_request_together(int a, int b) const { return state_.may_request_together(node_, a, b); }
bool Backward::may_alias(int index) const { return state_.may_alias(node_, index); }
GradientRequest Backward::request(int index, Absorb absorb) { return state_.request(node_, index, absorb); }
void Backward::written(int index, const GradientAnswer& answer) { state_.written(node_, index, answer); }
void Backward::alias(int index, const Tensor& gradient) { state_.alias(node_, index, gradient); }
void Backward::note(std::string_view text) {
  auto& notes = state_.nodes[node_].backward_notes;
  const auto free = std::ranges::find(notes, std::string_view());
  if (free != notes.end()) *free = text;
}

}  // namespace fusegrad
