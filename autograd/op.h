// How an op is recorded and differentiated: the interface between the engine and the derivative rules.
//
// An op is a function that checks its arguments, runs a kernel and records a Rule:
//
//   Var scale(const Var& x, double factor) {
//     Recording op("scale", {x});
//     Tensor y = op.new_tensor(x.shape(), x.dtype());
//     ... run the kernel from op.input(0) to y ...
//     return op.finish<ScaleRule>(y, factor);
//   }
//
// In backward the engine hands the rule the complete gradient dy of its output; the rule asks for the destination of
// each input's gradient and fills it. The engine gives every write its destination and what to add to it, so nothing is
// cleared first:
//
//   d  where to write
//   c  what was contributed already, to be added; undefined if nothing was. It may be d itself.
//
// A rule whose gradient is dy itself (add, reshape) hands it on with `alias` instead: no copy, no write.
//
// Fusion across ops: if an input was made by an op that ends with an activation, and this is the last contribution to
// its gradient, and nobody else looks at that gradient, the request offers to *absorb* the activation: the rule may
// store act'(aux) ∘ (gradient + c) instead, and sum its columns into the bias gradient of the op that made the input.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <new>
#include <span>
#include <string_view>
#include <utility>

#include <fusegrad/autograd/branch_log.h>
#include <fusegrad/autograd/profile.h>
#include <fusegrad/autograd/tape.h>

namespace fusegrad {

struct ActivationGradient;  // ops/activation_gradient.h; the engine only passes it on
class Backward;

/// A tensor that backward will read, with the version it had when it was saved.
struct Saved {
  Tensor tensor;
  std::uint64_t version = 0;
};

/// How to differentiate one recorded op.
class Rule {
 public:
  static constexpr int kMaxSaved = 4;

  virtual ~Rule() = default;

  /// Asks `sweep` for the destination of each input gradient that it needs, and fills or aliases every one of them.
  virtual void backward(Backward& sweep) = 0;
  /// The gradient of the activation that this op ends with; null if it ends with none. Valid as long as the rule.
  virtual const ActivationGradient* activation_gradient() const { return nullptr; }
  /// The input that is added to every row before the activation, so that its gradient is the column sum of the
  /// gradient before the activation; -1 if there is none.
  virtual int bias_input() const { return -1; }

  std::span<const Saved> saved() const { return {saved_.data(), static_cast<std::size_t>(saved_count_)}; }

 protected:
  /// Keeps `tensor` for backward and has the engine check that it was not written to in between. At most kMaxSaved.
  void save(const Tensor& tensor);
  const Tensor& saved(int index) const { return saved_[static_cast<std::size_t>(index)].tensor; }

 private:
  std::array<Saved, kMaxSaved> saved_;
  int saved_count_ = 0;
};

/// One call of an op while it is being recorded. Until its end, what runs is the op's forward to profilers.
class Recording {
 public:
  /// Errors: StateError if an input is undefined, stale or on another tape than the first, or the tape is spent.
  Recording(std::string_view op, std::initializer_list<std::reference_wrapper<const Var>> inputs);

  std::string_view op() const { return op_; }
  const Context& context() const;
  Fusion fusion() const;
  /// Null, or where an op with kinks writes or reads its decisions.
  BranchLog* branches() const;
  const Tensor& input(int index) const;
  /// True if backward will run through this op: only then is anything to be saved.
  bool differentiable() const { return differentiable_; }
  /// True if the gradient of input `index` will be asked for.
  bool needs(int index) const;
  /// An uninitialised tensor on the tape's context.
  Tensor new_tensor(const Shape& shape, Dtype dtype) const { return Tensor::empty(context(), shape, dtype); }

  /// What ran, for explain(): up to two lines of text that lives as long as the context; an empty one is none.
  void note(std::string_view text) {
    if (!text.empty()) (notes_[0].empty() ? notes_[0] : notes_[1]) = text;
  }

  /// Records a node with value `y` and, if the op is differentiable, the rule R(args...), made in the tape's memory.
  template <class R, class... Args>
  Var finish(const Tensor& y, Args&&... args) {
    if (!differentiable_) return add_node(y, nullptr);
    return add_node(y, new (rule_memory(sizeof(R), alignof(R))) R(std::forward<Args>(args)...));
  }

 private:
  static constexpr std::size_t kMaxInputs = 4;
  void* rule_memory(std::size_t bytes, std::size_t alignment) const;
  Var add_node(const Tensor& y, Rule* rule);

  std::string_view op_;
  std::array<std::string_view, 2> notes_ = {};
  std::shared_ptr<detail::TapeState> state_;
  std::array<const Var*, kMaxInputs> inputs_{};
  int input_count_ = 0;
  bool differentiable_ = false;
  detail::ProfileRange range_;
};

/// Records `parameter` as a leaf on the tape that `x` belongs to: how a module finds the tape of its input.
/// Errors: StateError if `x` is undefined or stale, the tape is spent, or the parameter is an empty handle;
/// DeviceError.
Var parameter_beside(const Var& x, const Parameter& parameter);

/// Where the gradient of one input goes.
struct GradientRequest {
  Tensor d;  ///< write here: the shape of the input; its dtype, or accumulation_dtype for a parameter
  Tensor c;  ///< add this, of d's dtype; undefined if nothing was contributed yet; may be d itself
  /// Offered activation gradient; null if there is none to absorb.
  const ActivationGradient* absorb = nullptr;
  /// With absorb: where to write, and what to add to, the column sums; undefined if no bias gradient is wanted.
  Tensor bias_d = {};
  Tensor bias_c = {};
};

/// What a rule did with a request.
struct GradientAnswer {
  bool absorbed = false;       ///< d holds act'(aux) ∘ (gradient + c)
  bool bias_gradient = false;  ///< bias_d holds the column sums of d, plus bias_c; only with absorbed
};

/// Whether a rule can make use of an offered activation gradient.
enum class Absorb : std::uint8_t { no, yes };

/// One node's turn in the reverse sweep.
class Backward {
 public:
  const Context& context() const;
  Fusion fusion() const;
  /// The complete gradient of the op's output, in the output's dtype, never to be written.
  const Tensor& dy() const;
  /// True if the consumer has applied this op's activation gradient already.
  bool absorbed() const;
  /// True if the gradient of input `index` is wanted and was not made already (a bias gradient by the consumer).
  bool needs(int index) const;
  /// True if input `index` is a parameter: its gradient is read by no other rule.
  bool is_parameter(int index) const;
  /// True if requests for inputs `a` and `b` may be open at the same time: neither destination is the other's, nor,
  /// where an activation gradient is offered, that of the bias gradient that goes with it.
  bool may_request_together(int a, int b) const;
  /// True if `alias` may be used for this input: nothing was contributed yet and the destination is not fixed.
  bool may_alias(int index) const;
  /// Destination of an input's gradient. At most once an input, and to be followed by written(). See
  /// may_request_together().
  GradientRequest request(int index, Absorb absorb = Absorb::no);
  void written(int index, const GradientAnswer& answer = {});
  /// The gradient of this input is `gradient`, dy itself or a view of it.
  void alias(int index, const Tensor& gradient);

  /// What ran, for explain(): up to six lines of text that lives as long as the context; an empty one is none.
  void note(std::string_view text);

 private:
  friend class detail::TapeState;
  Backward(detail::TapeState& state, std::uint32_t node) : state_(state), node_(node) {}

  detail::TapeState& state_;
  std::uint32_t node_;
};

}  // namespace fusegrad
