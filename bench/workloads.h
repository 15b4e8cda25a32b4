// The workloads of the benchmarks; docs/benchmarks.md says what they stand for, bench/workloads.py has the same ones.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fusegrad::bench {

/// A training step of a multi-layer perceptron: relu between layers, biases, mean squared error, Adam.
struct TrainingWorkload {
  std::string_view name = {};
  std::int64_t batch = 0;
  std::vector<std::int64_t> widths = {};
  /// "tf32" and "fp32": f32 storage, products in tf32 or fp32. "bf16": products of bf16, sums in fp32, fp32 master
  /// weights, gradients and optimizer state.
  std::string_view policy = {};
};

/// A forward pass in bf16 without gradients, or, with one layer, a single fused product.
struct InferenceWorkload {
  std::string_view name = {};
  std::vector<std::int64_t> batch = {};  ///< leading axes of the input: tokens, or sequences and tokens
  std::vector<std::int64_t> widths = {};
};

/// All of them, in the order in which they are run.
const std::vector<TrainingWorkload>& training_workloads();
const std::vector<InferenceWorkload>& inference_workloads();

/// Rows of the products: the batch axes taken together.
std::int64_t rows_of(const InferenceWorkload& workload);

/// True for workloads that are meant for a CPU; the others are a GPU's.
constexpr bool is_for_cpu(std::string_view name) { return name.starts_with("cpu"); }

/// The workloads in `all` that `names` names, or, without names, those of the device ("cpu" or "gpu").
/// Errors: ValueError for a name that is not among them.
std::vector<TrainingWorkload> select(const std::vector<TrainingWorkload>& all, const std::vector<std::string>& names,
                                     std::string_view device);
std::vector<InferenceWorkload> select(const std::vector<InferenceWorkload>& all, const std::vector<std::string>& names,
                                      std::string_view device);

/// One JSON object a line, {"workload", "batch", "widths", "policy"}, for programs that want to know them.
std::string to_json(const TrainingWorkload& workload);
std::string to_json(const InferenceWorkload& workload);

}  // namespace fusegrad::bench
