// y = act(x wᵀ + b).
//
// Backward, with dz the gradient before the activation (dy itself where the consumer absorbed the activation or there
// is none, else one pass over dy that also sums the bias gradient):
//   dx = dz w, with the activation gradient and the bias gradient of the op that made x, where offered
//   dw = dzᵀ x, with the bias gradient db = column sums of dz if no one made it yet
// Every gradient is written to its destination once, what was contributed before is added in the same pass.
//
// The unfused definition (Fusion::off, and under a branch log): the product in fp32 (fp64 for f64), then separate
// kernels for bias and activation, activation gradient, column sum and accumulation.
#include <functional>
#include <optional>
#include <utility>

#include <fusegrad/autograd/branches.h>
#include <fusegrad/autograd/check.h>
#include <fusegrad/ops/activation_gradient.h>
#include <fusegrad/ops/arithmetic_kernels.h>
#include <fusegrad/ops/dispatch.h>
#include <fusegrad/ops/linear.h>
#include <fusegrad/ops/linear_kernels.h>

namespace fusegrad {
namespace {

using detail::require;
using kernels::Transpose;

constexpr int kX = 0;
constexpr int kW = 1;
constexpr int kB = 2;

/// Operations of a product that has the GPU to itself: beside it, others would only take turns.
constexpr double kFillsGpu = 1e11;
/// Elements of a product that has a tile for each of the GPU's multiprocessors, and the least length of its sums for
/// which it is them, and not the memory, that it waits for.
constexpr std::int64_t kOccupiesGpu = std::int64_t{1} << 19;
constexpr std::int64_t kComputesLong = 128;

Counters& counters_of(const Context& context) { return context.state().counters(); }

/// d = op(a) op(b) + c, unfused.
void unfused_product(const Context& context, kernels::Product product, const GradientRequest& request) {
  Tensor d = request.d;
  const Dtype wide = accumulation_dtype(product.a.dtype);
  const bool direct = d.dtype() == wide && !request.c.defined();
  Tensor sum = direct ? d : Tensor::empty(context, d.shape(), wide);
  product.d = mutable_matrix_of(sum);
  ++counters_of(context).products;
  dispatch(context, [&](const auto& execution) {
    kernels::product(execution, product);
    if (direct) return;
    kernels::weighted_sum(execution, {.a = vector_of(sum), .b = vector_of(request.c), .y = mutable_vector_of(d)});
  });
}

class LinearRule final : public Rule {
 public:
  /// Undefined x or w: not needed, because the other gets no gradient.
  LinearRule(const Tensor& x, const Tensor& w, const ActivationGradient& gradient, bool has_bias)
      : x_(x), w_(w), gradient_(gradient), has_bias_(has_bias) {
    for (const Tensor& tensor : {x, w, gradient.saved}) {
      if (tensor.defined()) save(tensor);
    }
  }

  const ActivationGradient* activation_gradient() const override {
    return gradient_.activation == Activation::none ? nullptr : &gradient_;
  }
  int bias_input() const override { return has_bias_ ? kB : -1; }

  void backward(Backward& sweep) override {
    if (sweep.fusion() == Fusion::off) ++counters_of(sweep.context()).unfused_steps;
    const bool pass = activation_gradient() && !sweep.absorbed();
    if (pass) sweep.note("activation gradient in a pass of its own");
    const Tensor dz = pass ? activation_pass(sweep) : sweep.dy();
    if (may_run_beside(sweep, dz)) {
      gradients_beside(sweep, dz);
    } else {
      if (sweep.needs(kW)) weight_gradient(sweep, dz, Place::main);
      if (sweep.needs(kX)) input_gradient(sweep, dz);
    }
    if (has_bias_ && sweep.needs(kB)) bias_gradient(sweep, dz);
  }

 private:
  /// Where a weight gradient is made: on the main line, or beside it.
  enum class Place : std::uint8_t { main, beside };

  /// True if there are branches and dw is worth one.
  bool may_run_beside(const Backward& sweep, const Tensor& dz) const {
    if (!sweep.context().state().branches() || !sweep.needs(kW) || !sweep.needs(kX)) return false;
    return operations(dz) < kFillsGpu && sweep.is_parameter(kW) && (!has_bias_ || sweep.is_parameter(kB));
  }

  /// The share of the GPU that a product on the main line, of as many operations as dx or dw, leaves to optimizers.
  double room_beside(Backward& sweep, const Tensor& dz) const {
    detail::Branches* const branches = sweep.context().state().branches();
    const double work = operations(dz);
    const double share = branches && work >= kFillsGpu && sweep.fusion() == Fusion::on ? branches->make_room(work) : 0;
    if (share != 0) sweep.note("may leave multiprocessors to optimizers");
    return share;
  }

  /// Of the product that makes dx or dw.
  double operations(const Tensor& dz) const {
    return 2.0 * static_cast<double>(dz.size()) * static_cast<double>(w_.defined() ? w_.shape()[-1] : x_.shape()[-1]);
  }

  /// dx on the main line and dw beside it.
  void gradients_beside(Backward& sweep, const Tensor& dz) const {
    const bool fills = x_.size() >= kOccupiesGpu && dz.shape()[-1] >= kComputesLong && sweep.fusion() == Fusion::on;
    if (!fills || !sweep.may_request_together(kX, kW) || (has_bias_ && !sweep.may_request_together(kX, kB))) {
      weight_gradient(sweep, dz, Place::beside);
      input_gradient(sweep, dz);
      return;
    }
    // What follows waits for dx: dw comes second, beside the pass that finishes dx where there is one.
    bool made = false;
    const auto make = [&] {
      if (!std::exchange(made, true)) weight_gradient(sweep, dz, Place::beside);
    };
    const std::function<void()> begin_beside = [&make] { make(); };
    input_gradient(sweep, dz, &begin_beside);
    make();
  }

  /// A pass over dy: dz, and the bias gradient with it.
  Tensor activation_pass(Backward& sweep) const {
    Tensor dz = Tensor::empty(sweep.context(), sweep.dy().shape(), sweep.dy().dtype());
    kernels::ActivationBackward args{
        .dy = matrix_of(sweep.dy()), .dz = mutable_matrix_of(dz), .activation = gradient_.activation};
    read_saved(gradient_, args.dz.cols, args);
    const bool with_bias = has_bias_ && sweep.needs(kB) && sweep.fusion() == Fusion::on;
    if (with_bias) {
      take_bias(sweep, args);
      ++counters_of(sweep.context()).fused_bias_sums;
    }
    ++counters_of(sweep.context()).activation_passes;
    dispatch(sweep.context(), [&](const auto& execution) { kernels::activation_backward(execution, args); });
    if (with_bias) sweep.written(kB);
    return dz;
  }

  void input_gradient(Backward& sweep, const Tensor& dz, const std::function<void()>* begin_beside = nullptr) const {
    if (sweep.fusion() == Fusion::off) {
      const GradientRequest request = sweep.request(kX);
      unfused_product(sweep.context(), {.a = matrix_of(dz), .b = matrix_of(w_)}, request);
      sweep.written(kX);
      return;
    }
    GradientRequest request = sweep.request(kX, Absorb::yes);
    kernels::LinearInputGradient args{
        .dz = matrix_of(dz), .w = matrix_of(w_), .c = matrix_of(request.c), .dx = mutable_matrix_of(request.d)};
    args.begin_beside = begin_beside;
    args.spare = room_beside(sweep, dz);
    if (request.absorb) {
      args.activation = request.absorb->activation;
      read_saved(*request.absorb, args.dx.cols, args);
      args.bias = mutable_vector_of(request.bias_d);
      args.bias_c = vector_of(request.bias_c);
      args.bias_inputs = request.absorb->inputs;
    }
    ++counters_of(sweep.context()).products;
    const kernels::FusedResult result = dispatch(
        sweep.context(), [&](const auto& execution) { return kernels::linear_input_gradient(execution, args); });
    sweep.note(result.note);
    sweep.note(result.product);
    sweep.written(
        kX, {.absorbed = request.absorb != nullptr, .bias_gradient = request.bias_d.defined() && result.bias_gradient});
  }

  void weight_gradient(Backward& sweep, const Tensor& dz, Place place) const {
    std::optional<detail::Beside> beside;
    if (place == Place::beside) beside.emplace(sweep.context(), std::initializer_list<const Tensor*>{&dz, &x_});
    GradientRequest request = sweep.request(kW);
    if (beside) beside->uses(request.d);
    if (sweep.fusion() == Fusion::off) {
      unfused_product(sweep.context(), {.a = matrix_of(dz), .transpose_a = Transpose::yes, .b = matrix_of(x_)},
                      request);
      sweep.written(kW);
      return;
    }
    kernels::LinearWeightGradient args{
        .dz = matrix_of(dz), .x = matrix_of(x_), .c = matrix_of(request.c), .dw = mutable_matrix_of(request.d)};
    if (!beside) args.spare = room_beside(sweep, dz);
    const bool with_bias = has_bias_ && sweep.needs(kB);
    if (with_bias) {
      const Tensor bias = take_bias(sweep, args);
      if (beside) beside->uses(bias);
    }
    ++counters_of(sweep.context()).products;
    const kernels::FusedResult result = dispatch(
        sweep.context(), [&](const auto& execution) { return kernels::linear_weight_gradient(execution, args); });
    sweep.note(result.note);
    sweep.note(result.product);
    sweep.written(kW);
    if (!with_bias) return;
    ++(result.fused ? counters_of(sweep.context()).fused_bias_sums : counters_of(sweep.context()).column_sums);
    sweep.written(kB);
  }

  static void bias_gradient(Backward& sweep, const Tensor& dz) {
    GradientRequest request = sweep.request(kB);
    const kernels::ColumnSum args{
        .dz = matrix_of(dz), .bias = mutable_vector_of(request.d), .bias_c = vector_of(request.c)};
    ++counters_of(sweep.context()).column_sums;
    dispatch(sweep.context(), [&](const auto& execution) { kernels::column_sum(execution, args); });
    sweep.written(kB);
  }

  /// Has the kernel sum the bias gradient on its way. Returns where it goes.
  template <class Args>
  static Tensor take_bias(Backward& sweep, Args& args) {
    GradientRequest request = sweep.request(kB);
    args.bias = mutable_vector_of(request.d);
    args.bias_c = vector_of(request.c);
    return request.d;
  }

  Tensor x_;
  Tensor w_;
  ActivationGradient gradient_;
  bool has_bias_;
};

void check_arguments(const Var& x, const Var& w, const Var* b) {
  require<ShapeError>(x.shape().rank() >= 2, "linear: x must be [batch, in], got {}", x.shape());
  const std::int64_t in = x.shape()[-1];
  require<ShapeError>(w.shape().rank() == 2 && w.shape()[1] == in,
                      "linear: w must be [out, {}] ({} = last axis of x), got {}", in, in, w.shape());
  require<DtypeError>(w.dtype() == x.dtype(), "linear: w must be {} as x is, got {}", name_of(x.dtype()),
                      name_of(w.dtype()));
  if (!b) return;
  const std::int64_t out = w.shape()[0];
  require<ShapeError>(b->shape() == Shape{out}, "linear: b must be [{}] ({} = first axis of w), got {}", out, out,
                      b->shape());
  require<DtypeError>(b->dtype() == x.dtype(), "linear: b must be {} as x is, got {}", name_of(x.dtype()),
                      name_of(b->dtype()));
}

Shape output_shape(const Shape& x, std::int64_t out) {
  std::array<std::int64_t, Shape::kMaxRank> extents{};
  const auto rank = static_cast<std::size_t>(x.rank());
  for (std::size_t axis = 0; axis + 1 < rank; ++axis) extents[axis] = x[static_cast<int>(axis)];
  extents[rank - 1] = out;
  return Shape(std::span<const std::int64_t>(extents.data(), rank));
}

/// Where forward saves the pre-activation of `y` for backward, and the kernel's view of it.
template <class Args>
Tensor prepare_pre_activation(const Recording& op, Args& args) {
  Tensor saved = op.new_tensor({args.y.rows, padded_columns(args.y.cols)}, args.y.dtype);
  args.pre_activation = mutable_matrix_of(saved);
  args.pre_activation.cols = args.y.cols;
  return saved;
}

/// Runs the unfused definition and returns what backward needs of the activation.
Tensor unfused_forward(const Recording& op, Tensor& y, const Tensor& b, Activation activation) {
  Tensor z = op.new_tensor(y.shape(), accumulation_dtype(y.dtype()));
  const kernels::Product product{.a = matrix_of(op.input(kX)),
                                 .b = matrix_of(op.input(kW)),
                                 .transpose_b = Transpose::yes,
                                 .d = mutable_matrix_of(z)};
  kernels::ActivationForward args{
      .z = matrix_of(z), .b = vector_of(b), .y = mutable_matrix_of(y), .activation = activation};
  Tensor saved;
  if (activation == Activation::relu) {
    saved = prepare_mask(op, args.z.rows, args.z.cols, args);
  } else if (activation != Activation::none && op.differentiable()) {
    saved = prepare_pre_activation(op, args);
  }
  ++counters_of(op.context()).unfused_steps;
  dispatch(op.context(), [&](const auto& execution) {
    kernels::product(execution, product);
    kernels::activation_forward(execution, args);
  });
  return saved;
}

/// Runs the fused product and returns what backward needs of the activation.
Tensor fused_forward(Recording& op, Tensor& y, const Tensor& b, Activation activation) {
  kernels::LinearForward args{.x = matrix_of(op.input(kX)),
                              .w = matrix_of(op.input(kW)),
                              .b = vector_of(b),
                              .y = mutable_matrix_of(y),
                              .activation = activation};
  Tensor saved;
  if (op.differentiable() && activation == Activation::relu) {
    saved = op.new_tensor({mask_bytes(args.y.rows, args.y.cols)}, Dtype::u8);
    args.mask = static_cast<std::uint8_t*>(saved.mutable_raw());
  } else if (op.differentiable() && activation != Activation::none) {
    saved = prepare_pre_activation(op, args);
  }
  const kernels::FusedResult result =
      dispatch(op.context(), [&](const auto& execution) { return kernels::linear_forward(execution, args); });
  ++(result.fused ? counters_of(op.context()).fused_forwards : counters_of(op.context()).unfused_steps);
  op.note(result.note);
  op.note(result.product);
  return saved;
}

std::string_view unfused_note(bool bias, bool activation) {
  if (bias) return activation ? "unfused: product, then bias and activation" : "unfused: product, then bias";
  return activation ? "unfused: product, then activation" : "unfused: product";
}

Var record(Recording op, const Var& x, const Var& w, const Var* b, Activation activation) {
  check_arguments(x, w, b);
  Tensor y = op.new_tensor(output_shape(x.shape(), w.shape()[0]), x.dtype());
  const Tensor bias = b ? op.input(kB) : Tensor();
  const bool fused = op.fusion() == Fusion::on && !op.branches();
  ++counters_of(op.context()).products;
  ActivationGradient gradient{.activation = activation, .inputs = x.shape()[-1]};
  gradient.saved = fused ? fused_forward(op, y, bias, activation) : unfused_forward(op, y, bias, activation);
  if (!fused) op.note(unfused_note(b != nullptr, activation != Activation::none));
  return op.finish<LinearRule>(y, op.needs(kW) ? op.input(kX) : Tensor(), op.needs(kX) ? op.input(kW) : Tensor(),
                               gradient, b != nullptr);
}

}  // namespace

Var linear(const Var& x, const Var& w, const Var& b, const LinearOptions& options) {
  return record(Recording("linear", {x, w, b}), x, w, &b, options.activation);
}

Var linear(const Var& x, const Var& w, const LinearOptions& options) {
  return record(Recording("linear", {x, w}), x, w, nullptr, options.activation);
}

}  // namespace fusegrad
