// The ways in which one fused step can run, forward and backward, and the choice among them. Not installed.
//
// Without measurement the choice is by rank. With it, each way that is eligible is timed once for each shape, an input
// gradient together with the weight gradient of the layer below where that makes the bias gradient (strategy split), in
// memory of its own. A way replaces the preferred one only if it is faster by more than kWorthwhile (ops/plan_order.h).
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/ops/cuda/plan_key.h>
#include <fusegrad/ops/linear_kernels.h>
#include <fusegrad/ops/plan_file.h>
#include <fusegrad/ops/plans.h>

namespace fusegrad::kernels {

/// How y, its bias and its activation are made.
struct ForwardWay {
  /// False: in one product. True: a product, then a kernel for bias and activation; for f64 and f32, where the sums
  /// lose nothing on their way through memory.
  bool pass = false;
  std::string_view note = {};  ///< why

  bool same_as(const ForwardWay& other) const { return pass == other.pass; }
};

/// How dx, its activation gradient and its bias gradient are made.
struct InputGradientWay {
  Strategy strategy = Strategy::pass;
  /// pass: the kernel leaves the bias gradient to the weight gradient below, as strategy split does.
  bool leaves_bias = false;
  std::string_view note = {};  ///< why

  bool same_as(const InputGradientWay& other) const {
    return strategy == other.strategy && leaves_bias == other.leaves_bias;
  }
};

/// How the bias gradient is made that the weight gradient is asked for.
struct BiasWay {
  bool column_sum = false;  ///< by a kernel of its own, instead of the product

  bool same_as(const BiasWay& other) const { return column_sum == other.column_sum; }
};

FusedResult run_forward(const CudaExecution& execution, const LinearForward& args, const ForwardWay& way);
FusedResult run_input_gradient(const CudaExecution& execution, const LinearInputGradient& args,
                               const InputGradientWay& way);
FusedResult run_weight_gradient(const CudaExecution& execution, const LinearWeightGradient& args, const BiasWay& way);

}  // namespace fusegrad::kernels

namespace fusegrad::detail {

/// What has been measured, by shape.
class LinearWays {
 public:
  /// True if anything was measured, read from a file, or is to be measured.
  bool chooses(const CudaState& state) const;

  // The way for `args` that was measured before, or read from a file; else it is measured now. Null if it is not to be
  // measured, or cannot be measured now.

  /// Of a forward step with an activation, in f64 or f32; without measurement one product makes it.
  const kernels::ForwardWay* forward(const CudaExecution& execution, const kernels::LinearForward& args);
  /// `preferred`: the way without measurement; `fusable`: a product can apply the activation gradient.
  const kernels::InputGradientWay* input_gradient(const CudaExecution& execution,
                                                  const kernels::LinearInputGradient& args, Strategy preferred,
                                                  bool fusable);
  /// Of the bias gradient of a weight gradient; without measurement it is made in the product.
  const kernels::BiasWay* bias_gradient(const CudaExecution& execution, const kernels::LinearWeightGradient& args);

  /// What has been chosen so far.
  std::vector<PlanReport> reports() const;

  // Plan files; see PlanTable.
  std::vector<PlanRecord> records() const;
  bool has_measured() const;
  int propose(const std::vector<PlanRecord>& records);

 private:
  template <class Way>
  struct Choice {
    Way way = {};
    PlanReport report = {};
  };
  template <class Way>
  using ByShape = std::unordered_map<PlanKey, Choice<Way>, PlanKeyHash>;
  template <class Way>
  struct Choices {
    PlanSubject subject;
    ByShape<Way> made = {};
    ByShape<Way> proposed = {};  // read from a file, and not used yet
  };

  template <class Way>
  const Way* made(const Choices<Way>& choices, const PlanKey& key) const;
  template <class Way>
  const Way* read(const CudaExecution& execution, Choices<Way>& choices, const PlanKey& key,
                  const std::vector<Way>& eligible);
  template <class Way>
  const Way* keep(Choices<Way>& choices, const PlanKey& key, Choice<Way> choice, std::string_view how);
  /// f(choices) for each subject.
  template <class F>
  void visit(F&& f) const;

  Choices<kernels::ForwardWay> forwards_{PlanSubject::forward};
  Choices<kernels::InputGradientWay> input_gradients_{PlanSubject::input_gradient};
  Choices<kernels::BiasWay> bias_gradients_{PlanSubject::bias_gradient};
  std::set<std::string> texts_;  // notes, which tapes point to
};

}  // namespace fusegrad::detail
