// Records a computation and differentiates it in reverse.
//
// A tape is an explicit, append-only list of nodes, already in topological order. Ops are functions of Vars
// (`linear(x, w, b)`, `add(a, b)`) and record on the tape that their arguments belong to:
//
//   fusegrad::Tape tape(context);
//   fusegrad::Var loss = fusegrad::softmax_cross_entropy(net(tape.input(x)), label);
//   tape.backward(loss);
//
// A new tape a step costs nothing: its storage is borrowed from the context and returned by the destructor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/parameter.h>
#include <fusegrad/autograd/tensor.h>

namespace fusegrad {

class BranchLog;
class Tape;

namespace detail {
class TapeState;
}

/// What a tape is for. An inference tape records and saves nothing: a value lives as long as its Var.
enum class Mode : std::uint8_t { training, inference };

/// A value on a tape. Copies refer to the same node.
class Var {
 public:
  Var() = default;  ///< a handle to nothing

  bool defined() const { return state_ != nullptr; }
  const Shape& shape() const { return value_.shape(); }
  Dtype dtype() const { return value_.dtype(); }
  /// True if backward can reach this value: a variable, an unfrozen parameter, or something computed from one.
  bool needs_gradient() const;

  /// The value, readable until backward starts; afterwards only if this is the root of that backward, a variable, an
  /// input or a parameter, or `Tape::keep` named it, or backward was told to keep everything.
  /// Errors: StateError if it is no longer readable, or the tape was reset or destroyed.
  const Tensor& value() const;
  /// The only element of value(), widened to double. Errors: as value(); ShapeError if there is not exactly one.
  double item() const { return value().item(); }

 private:
  friend class Tape;
  friend class Recording;
  friend Var parameter_beside(const Var& x, const Parameter& parameter);
  friend class detail::TapeState;
  Var(std::shared_ptr<detail::TapeState> state, std::uint32_t index, std::uint32_t generation, Tensor value)
      : state_(std::move(state)), index_(index), generation_(generation), value_(std::move(value)) {}

  std::shared_ptr<detail::TapeState> state_;
  std::uint32_t index_ = 0;
  std::uint32_t generation_ = 0;
  Tensor value_;
};

/// Bytes of what a tape has recorded and of the parameters in it.
struct TapeMemory {
  std::int64_t values = 0;  ///< of what the ops made; those that are not saved, kept or held by a Var may be gone
  /// Of what ops saved for backward and the tape keeps alive until then: activations, masks, pre-activations, labels. A
  /// tensor that several ops saved counts once.
  std::int64_t saved = 0;
  std::int64_t saved_leaves = 0;  ///< of what they saved among parameters, inputs and variables, each once
  std::int64_t parameters = 0;    ///< of their values, and of the master weights of 16-bit ones
  std::int64_t gradients = 0;     ///< of those parameters that get one
};

/// What Tape::explain returns: lines to read, or the same as a JSON object for programs.
enum class ExplainFormat : std::uint8_t { text, json };

struct TapeOptions {
  Mode mode = Mode::training;
  /// Unset: the context's.
  std::optional<Fusion> fusion = std::nullopt;
  /// Null, or a log that outlives the tape; ops with kinks then run unfused. See branch_log.h.
  BranchLog* branches = nullptr;
};

struct BackwardOptions {
  /// Keep saved values, so that backward can run again. Otherwise the tape is spent.
  bool keep = false;
  /// The root's gradient is multiplied by this power of two, and so is every gradient; the optimizer divides by it.
  /// It keeps small gradients of 16-bit networks from flushing to zero. Range: 2^-126 to 2^126, and within the root's
  /// dtype.
  double loss_scale = 1;
};

/// Called with a complete gradient, during backward. The tensor may be read only.
using GradientHook = std::function<void(const Tensor& gradient)>;

class Tape {
 public:
  explicit Tape(const Context& context, Mode mode = Mode::training) : Tape(context, TapeOptions{.mode = mode}) {}
  Tape(const Context& context, const TapeOptions& options);
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  const Context& context() const;
  Mode mode() const;
  Fusion fusion() const;

  /// A constant, used where it is. Errors: DeviceError if the tensor is on another context; DtypeError if it is not
  /// floating-point.
  Var input(const Tensor& value);
  /// A leaf that gets a gradient. Errors: as input().
  Var variable(const Tensor& value);
  /// A leaf whose gradient is the parameter's; the same one each time, so that its gradient is complete when a hook
  /// sees it. A frozen parameter is a constant. Errors: StateError for an empty handle; DeviceError.
  Var parameter(const Parameter& parameter);

  /// Differentiates `loss`, which must have exactly one element. Gradients of parameters and variables are written, or
  /// added to what they already hold. Errors: StateError for a stale Var, a spent tape, a Var that depends on nothing
  /// differentiable or is a leaf itself, or a saved value that was changed since forward; ShapeError if `loss` is not a
  /// scalar; ValueError if loss_scale is not a power of two in its range. All are thrown before anything changed. If
  /// memory runs out, a hook throws or a saved value is written to during the sweep (StateError), the tape is spent and
  /// the gradients of all parameters that the sweep had reached are empty.
  void backward(const Var& loss, const BackwardOptions& options = {});
  /// Differentiates the inner product of `y` and `seed`. `seed` has y's shape and dtype and is not changed.
  /// Errors: as above; ShapeError, DtypeError or DeviceError for the seed.
  void backward(const Var& y, const Tensor& seed, const BackwardOptions& options = {});

  /// The gradient of a variable, or of a value that was named to retain_gradient, in the value's dtype. Repeated
  /// backwards add to a variable's gradient and replace a retained one. To be read only, since gradients that are equal
  /// may share memory: clone() it to change it. Errors: StateError if there is none, or the Var is stale.
  Tensor gradient(const Var& var) const;
  /// True if gradient(var) would return one. Errors: StateError if the Var is stale.
  bool has_gradient(const Var& var) const;
  /// Keeps the complete gradient of an intermediate value, before its op's activation gradient is applied.
  /// Errors: StateError for a stale Var, a spent tape or a Var that depends on nothing that gets a gradient.
  void retain_gradient(const Var& var);
  /// Calls `hook` with the complete gradient of `var`, before its op's activation gradient is applied; for a variable
  /// or a parameter that includes what earlier backwards left. Hooks run in the reverse order of recording, several of
  /// one value in the order in which they were added; they may not record, nor start another backward, nor destroy the
  /// tape, nor write to what backward has yet to read.
  /// Errors: as retain_gradient; ValueError for an empty hook.
  void on_gradient(const Var& var, GradientHook hook);
  /// Keeps the value readable after backward. Errors: StateError for a stale Var or a spent tape.
  void keep(const Var& var);

  /// Forgets all nodes. Every Var of this tape becomes stale.
  void reset();

  /// The parameters recorded so far that get a gradient, each once.
  std::vector<Parameter> parameters() const;
  /// Number of recorded nodes.
  std::int64_t size() const;
  /// Bytes that backward will read and that nothing else keeps alive on purpose: the saved values of all nodes.
  std::int64_t saved_bytes() const;
  /// What the step holds. All 0 for an inference tape.
  TapeMemory memory() const;
  /// One line a node: op, dtype, shape, bytes of its value and of what it saved, what ran forward and backward, and
  /// why; then memory() as one line. As JSON, indented by one space:
  ///   {"mode": "training", "fusion": "on",
  ///    "nodes": [{"index", "kind", "op", "inputs", "dtype", "shape", "value_bytes", "saved_bytes", "needs_gradient",
  ///               "forward": [...], "backward": [...], "absorb", "bias_absorbed"}, ...],
  ///    "memory": {"values", "saved", "saved_leaves", "parameters", "gradients"}}
  /// A parameter has its "name" too. "forward" and "backward" hold the same notes as the text: the strategy, the
  /// algorithm, its time and the runners-up if they were measured, the reason for any fallback. "absorb" is "none",
  /// "absorbed", "consumer_cannot", "observed", "fusion_off" or "declined". An inference tape has no nodes.
  std::string explain(ExplainFormat format = ExplainFormat::text) const;

 private:
  std::shared_ptr<detail::TapeState> state_;
};

}  // namespace fusegrad
