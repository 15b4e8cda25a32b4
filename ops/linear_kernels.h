// Kernels of the fused affine map, and the plain product of its unfused definition. Not installed.
//
// Sizes: m rows (batch), n output features, k input features. All matrices are row-major. Sums are kept in fp32 (fp64
// for f64) and rounded once, when stored. A null view means "none". Any size may be 0 or 1.
//
// Exact: results do not depend on the number of threads; where every partial sum is representable, so is the result.
#pragma once

#include <functional>
#include <string_view>

#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/activation_kind.h>
#include <fusegrad/ops/views.h>

namespace fusegrad::kernels {

/// What a fused kernel did, for counters and explain().
struct FusedResult {
  bool fused = true;          ///< false: the product could not do all of it, and kernels of their own did the rest
  bool bias_gradient = true;  ///< false: the bias gradient that was asked for was not made; the caller has to see to it
  std::string_view note = {};     ///< what ran, and why; text that lives as long as the context
  std::string_view product = {};  ///< the product that ran: its algorithm, and its time where that was measured
};

/// y = act(x wᵀ + b).
struct LinearForward {
  ConstMatrix x = {};  ///< [m, k], f64, f32, bf16 or f16
  ConstMatrix w = {};  ///< [n, k], x's dtype
  ConstVector b = {};  ///< [n], x's dtype, or none
  Matrix y = {};       ///< [m, n], x's dtype
  Activation activation = Activation::none;
  std::uint8_t* mask = nullptr;  ///< relu: bits of z >= 0, mask_bytes(m, n) bytes, padding bits 0; or none
  Matrix pre_activation = {};    ///< gelu: z [m, n], y's dtype; or none
};
FusedResult linear_forward(const CpuExecution& execution, const LinearForward& args);
FusedResult linear_forward(const CudaExecution& execution, const LinearForward& args);

/// dx = act'(saved) ∘ (dz w + c), with bias = column sums of dx + bias_c (of the values before they are rounded).
struct LinearInputGradient {
  ConstMatrix dz = {};  ///< [m, n]
  ConstMatrix w = {};   ///< [n, k], dz's dtype
  ConstMatrix c = {};   ///< [m, k], dx's dtype; may be dx; or none
  Matrix dx = {};       ///< [m, k], dz's dtype or its accumulation dtype
  Activation activation = Activation::none;
  const std::uint8_t* mask =
      nullptr;  ///< relu: [m, k] bits; the gradient is selected, not multiplied: 0 where the bit is 0
  ConstMatrix pre_activation = {};  ///< gelu: z [m, k]
  Vector bias = {};                 ///< [k], any floating dtype; or none
  ConstVector bias_c = {};          ///< [k], bias's dtype; may be bias; or none
  std::int64_t bias_inputs = 0;     ///< features that the layer of this bias has as inputs; 0: not known
  /// Called, where there is one, when a GPU may begin other work beside this: before a product that finishes dx by
  /// itself, or between a product and the pass that does; after both where the first was tried and does not exist.
  const std::function<void()>* begin_beside = nullptr;
  double spare = 0;  ///< GPU: share of the multiprocessors that the product leaves to other work
};
FusedResult linear_input_gradient(const CpuExecution& execution, const LinearInputGradient& args);
FusedResult linear_input_gradient(const CudaExecution& execution, const LinearInputGradient& args);

/// dw = dzᵀ x + c, with bias = column sums of dz + bias_c.
struct LinearWeightGradient {
  ConstMatrix dz = {};  ///< [m, n]
  ConstMatrix x = {};   ///< [m, k], dz's dtype
  ConstMatrix c = {};   ///< [n, k], dw's dtype; may be dw; or none
  Matrix dw = {};       ///< [n, k], dz's dtype or its accumulation dtype
  Vector bias = {};     ///< [n]; or none
  ConstVector bias_c = {};
  double spare = 0;  ///< as LinearInputGradient's
};
FusedResult linear_weight_gradient(const CpuExecution& execution, const LinearWeightGradient& args);
FusedResult linear_weight_gradient(const CudaExecution& execution, const LinearWeightGradient& args);

/// bias = column sums of dz + bias_c.
struct ColumnSum {
  ConstMatrix dz = {};  ///< [m, n]
  Vector bias = {};     ///< [n], any floating dtype
  ConstVector bias_c = {};
};
void column_sum(const CpuExecution& execution, const ColumnSum& args);
void column_sum(const CudaExecution& execution, const ColumnSum& args);

enum class Transpose : std::uint8_t { no, yes };

/// d = op(a) op(b), in the accumulation dtype of a: the product of the unfused definition.
struct Product {
  ConstMatrix a = {};  ///< [m, k], or [k, m] transposed
  Transpose transpose_a = Transpose::no;
  ConstMatrix b = {};  ///< [k, n], or [n, k] transposed; a's dtype
  Transpose transpose_b = Transpose::no;
  Matrix d = {};  ///< [m, n], f32 (f64 for f64)
};
void product(const CpuExecution& execution, const Product& args);
void product(const CudaExecution& execution, const Product& args);

}  // namespace fusegrad::kernels
