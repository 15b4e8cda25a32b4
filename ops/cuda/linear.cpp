// The fused affine map on a GPU: which cuBLASLt products run, and what runs where there is none.
//
// forward   y  = x wᵀ     RELU_AUX_BIAS, GELU_AUX_BIAS (training); RELU_BIAS, GELU_BIAS (inference); BIAS;
//                         in f64 and f32 also DEFAULT and a kernel, where that was measured to be faster
// backward  dx = dz w     by strategy: epilogue DRELU_BGRAD, DGELU_BGRAD; split DRELU, DGELU; pass DEFAULT and a kernel
//           dw = dzᵀ x    BGRADB where the bias gradient is wanted
//
// cuBLASLt overwrites a bias gradient, in the product's output dtype. Where it accumulates or is wider, it goes to
// scratch memory first and one vector kernel moves it. Products of too many elements are cut along the batch.
#include <algorithm>
#include <optional>

#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/ops/activation_kernels.h>
#include <fusegrad/ops/arithmetic_kernels.h>
#include <fusegrad/ops/cuda/blaslt.h>
#include <fusegrad/ops/cuda/linear_ways.h>
#include <fusegrad/ops/cuda/plan_table.h>
#include <fusegrad/ops/cuda/simple_product.h>
#include <fusegrad/ops/linear_kernels.h>

namespace fusegrad::kernels {
namespace {

using detail::Epilogue;
using detail::LtProduct;

/// What ran, as a text that lives as long as the context; null if cuBLASLt cannot run the product.
const std::string* run(const CudaExecution& execution, const LtProduct& product) {
  return execution.state.plan_table().run(execution, product);
}

/// d = op(a) op(b) + c, by cuBLASLt if it can. Returns what ran. `spare`: as LtProduct's.
std::string_view plain_product(const CudaExecution& execution, const SimpleProduct& product, double spare = 0) {
  const std::int64_t k = product.transpose_a == Transpose::no ? product.a.cols : product.a.rows;
  if (product.d.rows == 0 || product.d.cols == 0) return {};
  if (k != 0) {
    if (const std::string* ran = run(execution, {.a = product.a,
                                                 .transpose_a = product.transpose_a,
                                                 .b = product.b,
                                                 .transpose_b = product.transpose_b,
                                                 .c = product.c,
                                                 .d = product.d,
                                                 .spare = spare})) {
      return *ran;
    }
    ++execution.state.counters().missing_algorithms;
  }
  simple_product(execution, product);
  return "a product by the library's own kernel";
}

/// A bias gradient on its way from a product whose output has dtype `made` to where it belongs.
class BiasGradient {
 public:
  BiasGradient(const CudaExecution& execution, const Vector& bias, const ConstVector& bias_c, Dtype made)
      : bias_(bias), bias_c_(bias_c), made_(made) {
    if (bias.dtype != made || bias_c.data) {
      scratch_.emplace(execution.state.memory(), static_cast<std::size_t>(bias.size) * size_of(made));
    }
  }

  /// Where the product writes it.
  void* target() const { return scratch_ ? scratch_->data() : bias_.data; }
  void arrive(const CudaExecution& execution) const {
    if (scratch_) {
      weighted_sum(execution, {.a = {scratch_->data(), bias_.size, made_}, .b = bias_c_, .y = bias_});
    }
  }

 private:
  Vector bias_;
  ConstVector bias_c_;
  Dtype made_;
  std::optional<detail::Scratch> scratch_;
};

/// Rows [begin, end) of a view; a null view stays null.
template <class M>
M rows_of(M matrix, std::int64_t begin, std::int64_t end) {
  if (!matrix.data) return matrix;
  using Byte = std::conditional_t<std::is_same_v<M, Matrix>, std::byte, const std::byte>;
  matrix.data = static_cast<Byte*>(matrix.data) + begin * matrix.ld * static_cast<std::int64_t>(size_of(matrix.dtype));
  matrix.rows = end - begin;
  return matrix;
}

template <class B>
B* mask_rows_of(B* mask, std::int64_t begin, std::int64_t cols) {
  return mask ? mask + begin * mask_row_bytes(cols) : nullptr;
}

std::int64_t mask_ld(std::int64_t cols) { return mask_row_bytes(cols) * 8; }

/// Calls f(begin, end) for blocks of rows that one product can take; false, without a call, if one takes all.
template <class F>
bool cut(const CudaExecution& execution, std::int64_t rows, std::initializer_list<std::int64_t> lds, F&& f) {
  const std::int64_t block = execution.state.blaslt().rows_per_product(std::max(lds));
  if (rows <= block) return false;
  for (std::int64_t begin = 0; begin < rows; begin += block) f(begin, std::min(begin + block, rows));
  return true;
}

// Forward.

/// The fused product for these arguments; none for gelu_erf, which no epilogue computes.
std::optional<Epilogue> forward_epilogue(const LinearForward& args) {
  const bool bias = args.b.data != nullptr;
  switch (args.activation) {
    case Activation::none: return bias ? Epilogue::bias : Epilogue::none;
    case Activation::relu:
      if (args.mask) return bias ? Epilogue::relu_aux_bias : Epilogue::relu_aux;
      return bias ? Epilogue::relu_bias : Epilogue::relu;
    case Activation::gelu_tanh:
      if (args.pre_activation.data) return bias ? Epilogue::gelu_aux_bias : Epilogue::gelu_aux;
      return bias ? Epilogue::gelu_bias : Epilogue::gelu;
    default: return std::nullopt;
  }
}

std::string_view forward_note(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none: return "one cuBLASLt product";
    case Epilogue::bias: return "one cuBLASLt product: BIAS";
    case Epilogue::relu: return "one cuBLASLt product: RELU";
    case Epilogue::relu_bias: return "one cuBLASLt product: RELU_BIAS";
    case Epilogue::relu_aux: return "one cuBLASLt product: RELU_AUX";
    case Epilogue::relu_aux_bias: return "one cuBLASLt product: RELU_AUX_BIAS";
    case Epilogue::gelu: return "one cuBLASLt product: GELU";
    case Epilogue::gelu_bias: return "one cuBLASLt product: GELU_BIAS";
    case Epilogue::gelu_aux: return "one cuBLASLt product: GELU_AUX";
    case Epilogue::gelu_aux_bias: return "one cuBLASLt product: GELU_AUX_BIAS";
    default: return "";
  }
}

/// cuBLASLt wants a saved pre-activation whose rows are multiples of 8 elements.
bool fits_gelu(const ConstMatrix& pre_activation) { return !pre_activation.data || pre_activation.ld % 8 == 0; }

/// A product, then bias and activation by a kernel. Returns the product that ran.
std::string_view unfused_forward(const CudaExecution& execution, const LinearForward& args) {
  const Dtype wide = accumulation_dtype(args.x.dtype);
  const bool in_place = args.y.dtype == wide;
  const detail::Scratch sums =
      execution.state.scratch(in_place ? 0 : static_cast<std::size_t>(args.y.rows * args.y.cols) * size_of(wide));
  const Matrix z = in_place ? args.y : Matrix{sums.data(), args.y.rows, args.y.cols, args.y.cols, wide};
  const std::string_view ran =
      plain_product(execution, {.a = args.x, .b = args.w, .transpose_b = Transpose::yes, .d = z});
  activation_forward(execution, {.z = z,
                                 .b = args.b,
                                 .y = args.y,
                                 .activation = args.activation,
                                 .mask = args.mask,
                                 .pre_activation = args.pre_activation});
  return ran;
}

// Backward.

InputGradientWay way_for(const CudaExecution& execution, const LinearInputGradient& args) {
  const bool fusable = args.activation == Activation::relu ||
                       (args.activation == Activation::gelu_tanh && fits_gelu(args.pre_activation) &&
                        args.pre_activation.dtype == args.dx.dtype);
  if (args.activation == Activation::none || args.dz.cols == 0) return {};
  const Strategy asked = execution.state.settings().strategy;
  if (fusable && asked != Strategy::automatic) return {.strategy = asked};
  // The gradient epilogues load the mask slowly in 16-bit products, and their bias gradient has 16 bits.
  const Strategy preferred = !fusable || size_of(args.dx.dtype) == 2 ? Strategy::pass : Strategy::epilogue;
  if (asked == Strategy::automatic && execution.state.ways().chooses(execution.state)) {
    if (const auto* way = execution.state.ways().input_gradient(execution, args, preferred, fusable)) return *way;
  }
  return {.strategy = preferred};
}

/// dx by one product that applies the activation gradient, and sums the bias gradient if `with_bias`. Returns what ran.
const std::string* absorbing_product(const CudaExecution& execution, const LinearInputGradient& args, bool with_bias) {
  const bool relu = args.activation == Activation::relu;
  LtProduct product{.a = args.dz, .b = args.w, .c = args.c, .d = args.dx, .spare = args.spare};
  if (relu) {
    product.epilogue = with_bias ? Epilogue::drelu_bgrad : Epilogue::drelu;
    product.saved = const_cast<std::uint8_t*>(args.mask);  // NOLINT(cppcoreguidelines-pro-type-const-cast): only read
    product.saved_ld = mask_ld(args.dx.cols);
  } else {
    product.epilogue = with_bias ? Epilogue::dgelu_bgrad : Epilogue::dgelu;
    product.saved = const_cast<void*>(args.pre_activation.data);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    product.saved_ld = args.pre_activation.ld;
  }
  if (!with_bias) return run(execution, product);
  const BiasGradient bias(execution, args.bias, args.bias_c, args.dx.dtype);
  product.bias_gradient = bias.target();
  const std::string* ran = run(execution, product);
  if (ran) bias.arrive(execution);
  return ran;
}

/// What ran and why, for explain().
std::string_view absorbing_note(Activation activation, bool with_bias, bool asked) {
  if (activation == Activation::relu) {
    if (with_bias) return asked ? "dx: DRELU_BGRAD, as asked" : "dx: DRELU_BGRAD, the default for f32 and f64";
    return asked ? "dx: DRELU, as asked" : "dx: DRELU, the default for f32 and f64";
  }
  if (with_bias) return asked ? "dx: DGELU_BGRAD, as asked" : "dx: DGELU_BGRAD, the default for f32 and f64";
  return asked ? "dx: DGELU, as asked" : "dx: DGELU, the default for f32 and f64";
}

std::string_view pass_note(const LinearInputGradient& args, Strategy chosen, bool asked) {
  if (args.activation == Activation::none) return "dx: product";
  if (chosen != Strategy::pass) return "dx: product, then one pass: cuBLASLt has no algorithm for the fused one";
  if (asked) return "dx: product, then one pass for activation and bias gradient, as asked";
  if (args.activation == Activation::gelu_erf) return "dx: product, then one pass: no epilogue computes gelu_erf";
  if (size_of(args.dx.dtype) != 2) return "dx: product, then one pass: no epilogue takes what was saved";
  return "dx: product, then one pass for activation and bias gradient, the default for 16-bit types";
}

/// dx by a plain product, then a kernel for the activation gradient and the bias gradient. Returns what ran.
std::string_view pass(const CudaExecution& execution, const LinearInputGradient& args) {
  const std::string_view ran =
      plain_product(execution, {.a = args.dz, .b = args.w, .c = args.c, .d = args.dx}, args.spare);
  if (args.begin_beside) (*args.begin_beside)();
  if (args.activation == Activation::none) {
    if (args.bias.data) column_sum(execution, {.dz = args.dx, .bias = args.bias, .bias_c = args.bias_c});
    return ran;
  }
  ++execution.state.counters().activation_passes;
  activation_backward(execution, {.dy = args.dx,
                                  .dz = args.dx,
                                  .activation = args.activation,
                                  .mask = args.mask,
                                  .pre_activation = args.pre_activation,
                                  .bias = args.bias,
                                  .bias_c = args.bias_c});
  return ran;
}

/// Rows [begin, end) of a gradient; its bias gradient is added to that of the rows before.
LinearInputGradient part_of(const LinearInputGradient& args, std::int64_t begin, std::int64_t end) {
  LinearInputGradient part = args;
  part.dz = rows_of(args.dz, begin, end);
  part.c = rows_of(args.c, begin, end);
  part.dx = rows_of(args.dx, begin, end);
  part.mask = mask_rows_of(args.mask, begin, args.dx.cols);
  part.pre_activation = rows_of(args.pre_activation, begin, end);
  if (begin != 0) part.bias_c = args.bias;
  if (end != args.dx.rows) part.begin_beside = nullptr;
  return part;
}

}  // namespace

FusedResult run_forward(const CudaExecution& execution, const LinearForward& args, const ForwardWay& way) {
  if (args.y.rows == 0 || args.y.cols == 0) return {.note = "nothing to compute"};
  FusedResult result;
  const auto block = [&](std::int64_t begin, std::int64_t end) {
    LinearForward part = args;
    part.x = rows_of(args.x, begin, end);
    part.y = rows_of(args.y, begin, end);
    part.mask = mask_rows_of(args.mask, begin, args.y.cols);
    part.pre_activation = rows_of(args.pre_activation, begin, end);
    result = run_forward(execution, part, way);
  };
  if (cut(execution, args.y.rows, {args.x.ld, args.y.ld, mask_ld(args.y.cols), args.pre_activation.ld}, block)) {
    return result;
  }
  const std::optional<Epilogue> epilogue = forward_epilogue(args);
  if (!epilogue || args.x.cols == 0) {
    unfused_forward(execution, args);
    return {.fused = false,
            .note = args.b.data ? "a product, then bias and activation: no epilogue computes this"
                                : "a product, then the activation: no epilogue computes this"};
  }
  if (way.pass) {
    const std::string_view ran = unfused_forward(execution, args);
    return {.fused = false, .note = way.note, .product = ran};
  }
  LtProduct product{
      .a = args.x, .b = args.w, .transpose_b = Transpose::yes, .d = args.y, .epilogue = *epilogue, .bias = args.b.data};
  if (args.mask) {
    product.saved = args.mask;
    product.saved_ld = mask_ld(args.y.cols);
  } else if (args.pre_activation.data) {
    product.saved = args.pre_activation.data;
    product.saved_ld = args.pre_activation.ld;
  }
  if (const std::string* ran = fits_gelu(args.pre_activation) ? run(execution, product) : nullptr) {
    return {.note = way.note.empty() ? forward_note(*epilogue) : way.note, .product = *ran};
  }
  ++execution.state.counters().missing_algorithms;
  unfused_forward(execution, args);
  return {.fused = false,
          .note = args.b.data ? "a product, then bias and activation: cuBLASLt has no algorithm for the fused one"
                              : "a product, then the activation: cuBLASLt has no algorithm for the fused one"};
}

FusedResult linear_forward(const CudaExecution& execution, const LinearForward& args) {
  ForwardWay way;
  const bool wide = args.y.dtype == accumulation_dtype(args.y.dtype);
  const bool choice = wide && forward_epilogue(args) && args.activation != Activation::none && args.x.cols != 0 &&
                      args.y.rows != 0 && args.y.cols != 0;
  if (choice && execution.state.settings().strategy == Strategy::automatic &&
      execution.state.ways().chooses(execution.state)) {
    if (const ForwardWay* measured = execution.state.ways().forward(execution, args)) way = *measured;
  }
  return run_forward(execution, args, way);
}

FusedResult run_input_gradient(const CudaExecution& execution, const LinearInputGradient& args,
                               const InputGradientWay& way) {
  const bool with_bias = args.bias.data != nullptr;
  FusedResult result;
  if ((way.strategy == Strategy::split || way.leaves_bias) && with_bias) {
    LinearInputGradient without = args;
    without.bias = {};
    without.bias_c = {};
    result = run_input_gradient(execution, without, way);
    result.bias_gradient = false;
    return result;
  }
  const auto block = [&](std::int64_t begin, std::int64_t end) {
    result = run_input_gradient(execution, part_of(args, begin, end), way);
  };
  if (cut(execution, args.dx.rows,
          {args.dz.ld, args.dx.ld, args.c.ld, mask_ld(args.dx.cols), args.pre_activation.ld, 1}, block)) {
    return result;
  }
  if (args.dx.rows == 0 || args.dx.cols == 0) {
    if (with_bias) column_sum(execution, {.dz = args.dx, .bias = args.bias, .bias_c = args.bias_c});
    return {.note = "dx: empty"};
  }
  const bool asked = execution.state.settings().strategy == way.strategy;
  if (way.strategy != Strategy::pass) {
    if (args.begin_beside) (*args.begin_beside)();
    if (const std::string* ran = absorbing_product(execution, args, with_bias)) {
      return {.note = way.note.empty() ? absorbing_note(args.activation, with_bias, asked) : way.note, .product = *ran};
    }
    ++execution.state.counters().missing_algorithms;
  }
  const std::string_view ran = pass(execution, args);
  const bool as_chosen = !way.note.empty() && way.strategy == Strategy::pass;
  return {.fused = args.activation == Activation::none,
          .note = as_chosen ? way.note : pass_note(args, way.strategy, asked),
          .product = ran};
}

FusedResult linear_input_gradient(const CudaExecution& execution, const LinearInputGradient& args) {
  return run_input_gradient(execution, args, way_for(execution, args));
}

FusedResult run_weight_gradient(const CudaExecution& execution, const LinearWeightGradient& args, const BiasWay& way) {
  FusedResult result;
  const auto block = [&](std::int64_t begin, std::int64_t end) {
    LinearWeightGradient part = args;
    part.dz = rows_of(args.dz, begin, end);
    part.x = rows_of(args.x, begin, end);
    if (begin != 0) {
      part.c = args.dw;
      part.bias_c = args.bias;
    }
    result = run_weight_gradient(execution, part, way);
  };
  if (cut(execution, args.dz.rows, {args.dz.ld, args.x.ld, 1}, block)) return result;

  const bool wants_bias = args.bias.data != nullptr;
  const bool empty = args.dz.rows == 0 || args.dw.rows == 0 || args.dw.cols == 0;
  if (wants_bias && !empty && !way.column_sum) {
    const BiasGradient bias(execution, args.bias, args.bias_c, args.dw.dtype);
    if (const std::string* ran = run(execution, {.a = args.dz,
                                                 .transpose_a = Transpose::yes,
                                                 .b = args.x,
                                                 .c = args.c,
                                                 .d = args.dw,
                                                 .epilogue = Epilogue::bgradb,
                                                 .bias_gradient = bias.target(),
                                                 .spare = args.spare})) {
      bias.arrive(execution);
      return {.note = "dw: BGRADB", .product = *ran};
    }
    ++execution.state.counters().missing_algorithms;
  }
  const std::string_view ran = plain_product(
      execution, {.a = args.dz, .transpose_a = Transpose::yes, .b = args.x, .c = args.c, .d = args.dw}, args.spare);
  if (!wants_bias) return {.note = "dw: product", .product = ran};
  column_sum(execution, {.dz = args.dz, .bias = args.bias, .bias_c = args.bias_c});
  return {.fused = false, .note = "dw: product and column sum", .product = ran};
}

FusedResult linear_weight_gradient(const CudaExecution& execution, const LinearWeightGradient& args) {
  const Strategy asked = execution.state.settings().strategy;
  BiasWay way{.column_sum = asked == Strategy::pass};
  const bool choice = args.bias.data && args.dz.rows != 0 && args.dw.rows != 0 && args.dw.cols != 0;
  if (choice && asked == Strategy::automatic && execution.state.ways().chooses(execution.state)) {
    if (const BiasWay* measured = execution.state.ways().bias_gradient(execution, args)) way = *measured;
  }
  return run_weight_gradient(execution, args, way);
}

void product(const CudaExecution& execution, const Product& args) {
  plain_product(
      execution,
      {.a = args.a, .transpose_a = args.transpose_a, .b = args.b, .transpose_b = args.transpose_b, .d = args.d});
}

}  // namespace fusegrad::kernels
