// The nodes of a tape and the reverse sweep over them. Not installed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fusegrad/autograd/op.h>
#include <fusegrad/autograd/parameter_store.h>

namespace fusegrad::detail {

/// Memory for rules: chunks that are filled front to back and reused from the start by the next recording.
class RuleMemory {
 public:
  void* allocate(std::size_t bytes, std::size_t alignment);
  void rewind() {
    chunk_ = 0;
    used_ = 0;
  }

 private:
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 16;
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::size_t chunk_ = 0;
  std::size_t used_ = 0;
};

/// Index of a Var on an inference tape, which has no nodes.
inline constexpr std::uint32_t kUnrecorded = UINT32_MAX;

enum class NodeKind : std::uint8_t { input, variable, parameter, op };

/// Why an activation gradient was not offered to the consumer, or that it was absorbed; for explain().
enum class AbsorbOutcome : std::uint8_t { none, absorbed, consumer_cannot, observed, fusion_off, declined };

struct Node;
/// What explain() says of node.absorb; "" for none. Defined in explain.cpp.
std::string_view absorb_text(const Node& node);

struct Node {
  std::string_view op;
  Rule* rule = nullptr;  ///< null for leaves, constants, and nodes whose rule has run
  std::uint32_t first_input = 0;
  std::uint32_t parameter = 0;  ///< index into parameters, for NodeKind::parameter
  std::uint8_t input_count = 0;
  NodeKind kind = NodeKind::op;
  bool needs_gradient = false;
  bool kept = false;      ///< value readable after backward
  bool retained = false;  ///< gradient readable after backward
  bool hooked = false;
  AbsorbOutcome absorb = AbsorbOutcome::none;
  bool bias_absorbed = false;
  Dtype dtype = Dtype::f32;
  Shape shape = {};
  std::int64_t saved_bytes = 0;
  const void* value = nullptr;  ///< where the value is, or was
  std::array<std::string_view, 2> forward_notes = {};
  std::array<std::string_view, 7> backward_notes = {};  ///< those given are in front
};

/// A parameter and its node.
struct ParameterLeaf {
  Parameter parameter;
  std::uint32_t node = 0;
};

/// A tensor that a rule has saved: where it is, or was. All those of a tape exist at the same time.
struct SavedMemory {
  const void* data;
  std::int64_t bytes;
};

/// The gradient of one node while the sweep runs, and of variables and retained values afterwards.
struct GradientSlot {
  Tensor gradient;          ///< undefined: nothing was contributed yet
  std::uint32_t edges = 0;  ///< contributions still to come in this sweep
  bool reached = false;     ///< on a path from the root
  bool absorbed = false;    ///< the activation gradient has been applied to `gradient`
  bool bias_done = false;   ///< the bias gradient of this node's op was made by the consumer
};

class TapeState : public std::enable_shared_from_this<TapeState> {
 public:
  // Recording (tape.cpp).
  void open(const Context& context, const TapeOptions& options);
  void close() noexcept;  ///< back to the context's idle tapes; every Var becomes stale
  void clear();           ///< forgets all nodes
  Var add(const Node& node, std::span<const std::uint32_t> inputs, const Tensor& value);
  Var add_leaf(NodeKind kind, std::string_view op, const Tensor& value, bool needs_gradient);
  Var add_parameter(const Parameter& parameter);
  std::uint32_t check(const Var& var, std::string_view who) const;  ///< index of a live Var of this tape
  const Node& node(const Var& var, std::string_view who) const;     ///< node of a live Var of this tape
  std::uint32_t differentiable(const Var& var, std::string_view who) const;
  void check_open(std::string_view who) const;

  // The sweep (sweep.cpp).
  void backward(const Var& root, const std::optional<Tensor>& seed, const BackwardOptions& options);
  GradientRequest request(std::uint32_t node, int input, Absorb absorb);
  void written(std::uint32_t node, int input, const GradientAnswer& answer);
  bool is_parameter(std::uint32_t node, int input) const;
  bool may_request_together(std::uint32_t node, int a, int b) const;
  bool may_alias(std::uint32_t node, int input) const;
  void alias(std::uint32_t node, int input, const Tensor& gradient);
  bool needs(std::uint32_t node, int input) const;

  std::span<const std::uint32_t> inputs_of(const Node& node) const {
    return std::span(inputs).subspan(node.first_input, node.input_count);
  }

  TapeMemory memory() const;  // tape_memory.cpp

  // explain.cpp
  std::string explain() const;
  std::string explain_json() const;

  std::optional<Context> context;  ///< empty while idle, so that an idle tape does not keep its context alive
  Mode mode = Mode::training;
  Fusion fusion = Fusion::on;
  BranchLog* branches = nullptr;
  std::uint32_t generation = 0;
  bool sweeping = false;  ///< backward is running: hooks may not record
  bool spent = false;     ///< a backward without keep has run, or one failed: saved values are gone

  std::vector<Node> nodes;
  std::vector<std::uint32_t> inputs;
  std::vector<ParameterLeaf> parameters;
  std::vector<std::pair<std::uint32_t, GradientHook>> hooks;
  std::vector<GradientSlot> slots;
  std::vector<SavedMemory> saved;
  RuleMemory rules;

 private:
  /// Where a contribution to `node`'s gradient goes, and what is there already.
  struct Destination {
    Tensor d;
    Tensor c;
  };
  Tensor initial_gradient(const Var& root, double loss_scale) const;
  Tensor readable(const Tensor& seed) const;
  void count_edges(std::uint32_t root);
  void check_saved(double loss_scale) const;
  void sweep(bool keep);
  /// True if a rule that the sweep has yet to visit, below node `index`, saved memory of the parameter: as a constant.
  bool is_read_below(std::uint32_t index, const ParameterSlot& slot) const;
  void detach_from(const Tensor& seed);
  ParameterSlot& slot_of(const Node& node) const;
  void visit(std::uint32_t index);
  Destination destination(std::uint32_t index);
  void contribute(std::uint32_t index, const Tensor& gradient);
  AbsorbOutcome may_absorb(std::uint32_t index, Absorb consumer) const;
  int bias_node_of(std::uint32_t index) const;
  void abandon() noexcept;

  /// Requests that are open for the node being visited: one an input.
  struct Open {
    Tensor d = {};
    Tensor bias_d = {};
    bool offered = false;
    bool answered = false;
  };
  std::array<Open, 4> open_;
  double loss_scale_ = 1;
};

}  // namespace fusegrad::detail
