// The ways in which one fused backward step can run, and the choice among them. Not installed.
//
// Without measurement the choice is by rank. With it, each way that is eligible is timed once for each shape, together
// with the weight gradient of the layer below where that makes the bias gradient (strategy split), in memory of its
// own. A way replaces the preferred one only if it is faster by more than kWorthwhile (ops/plan_order.h).
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
enum class BiasWay : std::uint8_t { in_product, column_sum };

FusedResult run_input_gradient(const CudaExecution& execution, const LinearInputGradient& args,
                               const InputGradientWay& way);
FusedResult run_weight_gradient(const CudaExecution& execution, const LinearWeightGradient& args, BiasWay way);

}  // namespace fusegrad::kernels

namespace fusegrad::detail {

/// What has been measured, by shape.
class LinearWays {
 public:
  /// True if anything was measured, read from a file, or is to be measured.
  bool chooses(const CudaState& state) const;
  /// The way for `args` that was measured before, or read from a file; else it is measured now. `preferred` is the way
  /// without measurement; `fusable`: a product can apply the activation gradient. Null if it is not to be measured, or
  /// cannot be measured now.
  const kernels::InputGradientWay* input_gradient(const CudaExecution& execution,
                                                  const kernels::LinearInputGradient& args, Strategy preferred,
                                                  bool fusable);
  /// The same for the bias gradient of a weight gradient; without measurement it is made in the product.
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
  using Choices = std::unordered_map<PlanKey, Choice<Way>, PlanKeyHash>;

  Choices<kernels::InputGradientWay> input_gradients_;
  Choices<kernels::BiasWay> bias_gradients_;
  // Read from a file, and not used yet.
  Choices<kernels::InputGradientWay> proposed_input_gradients_;
  Choices<kernels::BiasWay> proposed_bias_gradients_;
  std::set<std::string> texts_;  // notes, which tapes point to
};

}  // namespace fusegrad::detail
