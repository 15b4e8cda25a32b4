#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <fusegrad/autograd/branch_log.h>
#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/gradient_check.h>
#include <fusegrad/autograd/parameter_store.h>
#include <fusegrad/autograd/random.h>

namespace fusegrad {
namespace {

using detail::require;

constexpr double kLargestStep = 0x1p-10;
constexpr double kSmallestStep = 0x1p-24;

/// One tensor whose coordinates are varied: an input, or a parameter.
struct Block {
  std::string name;
  Tensor tensor;  ///< what the function reads
  std::optional<Parameter> parameter;
  std::vector<double> base;
  std::vector<double> gradient;

  void set(std::span<const double> values) { tensor.copy_from(values); }
};

/// Values of f(base + t direction) at the points of a stencil, and whether all took the base point's branches.
struct Stencil {
  double far_left = 0, left = 0, right = 0, far_right = 0;
  bool same_branches = true;

  double five_point(double h) const { return (-far_right + 8 * right - 8 * left + far_left) / (12 * h); }
};

class Checker {
 public:
  Checker(const CheckedFunction& f, std::span<const Tensor> inputs, const GradientCheckOptions& options)
      : f_(f), options_(options), context_(check(inputs, options)) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Block block{.name = detail::format("input {}", i),
                  .tensor = inputs[i].clone(),
                  .parameter = {},
                  .base = {},
                  .gradient = {}};
      block.base = inputs[i].to_vector<double>();
      blocks_.push_back(std::move(block));
    }
    input_count_ = inputs.size();
    if (!options.parameters) return;
    for (const Parameter parameter : *options.parameters) {
      if (!parameter.frozen()) add_block(parameter);
    }
  }
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;
  ~Checker() {
    for (Block& block : blocks_) {
      if (!block.parameter) continue;
      block.parameter->clear_gradient();
      block.set(block.base);
    }
  }

  GradientCheckReport run() {
    differentiate();
    BranchLog log;
    base_value_ = evaluate(log, false);
    base_branches_ = log;
    compare_forward();
    std::int64_t coordinates = 0;
    for (const Block& block : blocks_) coordinates += static_cast<std::int64_t>(block.base.size());
    if (coordinates <= options_.max_coordinates) {
      for (Block& block : blocks_) check_block(block);
    } else {
      for (int i = 0; i < options_.directions; ++i) check_direction(i);
    }
    return report_;
  }

 private:
  static Context check(std::span<const Tensor> inputs, const GradientCheckOptions& options) {
    const bool parameters = options.parameters && options.parameters->size() != 0;
    require<ValueError>(!inputs.empty() || parameters, "gradient_check: there is neither an input nor a parameter");
    Context context = inputs.empty() ? options.parameters->context() : inputs[0].context();
    for (const Tensor& input : inputs) {
      check_dtype(input.dtype());
      require<DeviceError>(input.context() == context, "gradient_check: all inputs must be on one context");
    }
    if (parameters) {
      check_dtype(options.parameters->dtype());
      require<DeviceError>(options.parameters->context() == context,
                           "gradient_check: inputs and parameters must be on one context");
      for (const Parameter parameter : *options.parameters) check_empty(parameter);
    }
    return context;
  }

  static void check_dtype(Dtype dtype) {
    require<DtypeError>(dtype == Dtype::f64,
                        "gradient_check: everything must be f64, got {}: differences in a narrower type cannot tell a "
                        "right gradient from a wrong one",
                        name_of(dtype));
  }

  static void check_empty(const Parameter& parameter) {
    require<StateError>(!parameter.has_gradient(), "gradient_check: parameter \"{}\" holds a gradient; clear it first",
                        parameter.name());
  }

  void add_block(const Parameter& parameter) {
    Block block{.name = detail::format("parameter \"{}\"", parameter.name()),
                .tensor = parameter.value(),
                .parameter = parameter,
                .base = parameter.value().to_vector<double>(),
                .gradient = {}};
    blocks_.push_back(std::move(block));
  }

  /// Adds what the function uses and nobody named: a wrong gradient must not pass because it was left out.
  void add_used(const std::vector<Parameter>& used) {
    for (const Parameter& parameter : used) {
      const bool named = std::ranges::any_of(blocks_, [&](const Block& block) { return block.parameter == parameter; });
      if (named) continue;
      check_dtype(parameter.dtype());
      check_empty(parameter);
      add_block(parameter);
    }
  }

  std::vector<Var> leaves(Tape& tape) const {
    std::vector<Var> vars;
    for (std::size_t i = 0; i < input_count_; ++i) vars.push_back(tape.variable(blocks_[i].tensor));
    return vars;
  }

  /// Weights that reduce an output of `size` elements to one number: in [0.5, 1.5), so that no element is lost.
  double weight(std::int64_t index) const {
    return 0.5 + static_cast<double>(Random(options_.seed, 0).uniform(static_cast<std::uint64_t>(index)));
  }

  double reduce(const Tensor& y) const {
    const std::vector<double> values = y.to_vector<double>();
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) sum += weight(static_cast<std::int64_t>(i)) * values[i];
    return sum;
  }

  void differentiate() {
    Tape tape(context_);
    const std::vector<Var> vars = leaves(tape);
    const Var y = f_(tape, vars);
    require<DtypeError>(y.dtype() == Dtype::f64, "gradient_check: the function must return f64, got {}",
                        name_of(y.dtype()));
    std::vector<double> weights(static_cast<std::size_t>(y.shape().size()));
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = weight(static_cast<std::int64_t>(i));
    weight_norm_ = std::sqrt(std::inner_product(weights.begin(), weights.end(), weights.begin(), 0.0));
    fused_value_ = reduce(y.value());
    const std::vector<Parameter> used = tape.parameters();
    add_used(used);
    tape.backward(y, Tensor::from(context_, y.shape(), weights));
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      Block& block = blocks_[i];
      block.gradient.assign(block.base.size(), 0.0);
      if (block.parameter) {
        // A parameter that the function does not use keeps an empty gradient, which is a gradient of zero.
        if (block.parameter->has_gradient()) block.gradient = block.parameter->gradient().to_vector<double>();
      } else if (tape.has_gradient(vars[i])) {
        block.gradient = tape.gradient(vars[i]).to_vector<double>();
      }
    }
    for (const Parameter& parameter : used) parameter.clear_gradient();
  }

  /// f at the blocks' present values, unfused; decisions are written to `log`, or taken from it.
  double evaluate(BranchLog& log, bool replay) const {
    if (replay) {
      log.replay();
    } else {
      log.record();
    }
    Tape tape(context_, {.mode = Mode::inference, .fusion = Fusion::off, .branches = &log});
    const std::vector<Var> vars = leaves(tape);
    return reduce(f_(tape, vars).value());
  }

  /// Moves along `direction` (in the coordinates of `moved`) and evaluates the four points of the stencil.
  template <class Move>
  Stencil stencil(Move&& move, double h, bool frozen) {
    Stencil result;
    const auto at = [&](double t) {
      move(t);
      if (frozen) return evaluate(base_branches_, true);
      BranchLog log;
      const double value = evaluate(log, false);
      result.same_branches &= log == base_branches_;
      return value;
    };
    result.far_left = at(-2 * h);
    result.left = at(-h);
    result.right = at(h);
    result.far_right = at(2 * h);
    move(0);
    return result;
  }

  /// Bound on |gradient - difference| for a stencil of step h whose gradient is `gradient`, with gates scaled by
  /// `scale`.
  double bound(double gradient, double h, double scale) const {
    const double rounding = 4 * std::numeric_limits<double>::epsilon() * std::max(std::fabs(base_value_), 1.0) / h;
    return scale * options_.absolute + options_.relative * std::fabs(gradient) + rounding;
  }

  template <class Move>
  void check_line(const std::string& where, double gradient, double size, double scale, Move&& move) {
    const double unit = std::max(1.0, size);
    double h = kLargestStep * unit;
    Stencil points = stencil(move, h, false);
    while (!points.same_branches && h / 4 >= kSmallestStep * unit) {
      h /= 4;
      points = stencil(move, h, false);
    }
    if (points.same_branches) {
      ++report_.smooth;
      compare(where, gradient, points.five_point(h), bound(gradient, h, scale));
      return;
    }
    ++report_.frozen;
    const double left = (3 * base_value_ - 4 * points.left + points.far_left) / (2 * h);
    const double right = (-3 * base_value_ + 4 * points.right - points.far_right) / (2 * h);
    const double slack = bound(gradient, h, scale);
    const double nearest = std::clamp(gradient, std::min(left, right) - slack, std::max(left, right) + slack);
    compare(where + " (one-sided)", gradient, nearest, slack);
    const double wide = kLargestStep * unit;
    compare(where + " (frozen branches)", gradient, stencil(move, wide, true).five_point(wide),
            bound(gradient, wide, scale));
  }

  void check_block(Block& block) {
    std::vector<double> values = block.base;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double base = block.base[i];
      check_line(detail::format("{}, element {}", block.name, i), block.gradient[i], std::fabs(base), 1.0,
                 [&](double t) {
                   values[i] = base + t;
                   block.set(values);
                 });
    }
  }

  void check_direction(int number) {
    // A unit vector with every coordinate of equal size, so that none drowns.
    const Random random(options_.seed, 1 + static_cast<std::uint64_t>(number));
    std::size_t coordinates = 0;
    for (const Block& block : blocks_) coordinates += block.base.size();
    const double size = 1 / std::sqrt(static_cast<double>(coordinates));
    std::vector<std::vector<double>> directions;
    double gradient = 0;
    std::uint64_t drawn = 0;
    for (const Block& block : blocks_) {
      std::vector<double>& direction = directions.emplace_back(block.base.size());
      for (std::size_t i = 0; i < direction.size(); ++i) {
        direction[i] = (random.bits(drawn++) & 1u) != 0 ? size : -size;
        gradient += direction[i] * block.gradient[i];
      }
    }
    check_line(detail::format("random direction {}", number), gradient, 1.0, weight_norm_, [&](double t) {
      for (std::size_t b = 0; b < blocks_.size(); ++b) {
        std::vector<double> values = blocks_[b].base;
        for (std::size_t i = 0; i < values.size(); ++i) values[i] += t * directions[b][i];
        blocks_[b].set(values);
      }
    });
  }

  void compare_forward() {
    report_.forward_error = std::fabs(fused_value_ - base_value_);
    const double limit = options_.absolute + options_.relative * std::fabs(base_value_);
    note(report_.forward_error, limit,
         [&] { return detail::format("forward: fused {:.17g}, unfused {:.17g}", fused_value_, base_value_); });
  }

  void compare(const std::string& where, double gradient, double difference, double limit) {
    const double error = std::fabs(gradient - difference);
    if (!(error <= report_.largest_error)) report_.largest_error = error;
    note(error, limit,
         [&] { return detail::format("{}: gradient {:.17g}, difference {:.17g}", where, gradient, difference); });
  }

  /// Keeps the largest ratio; a NaN is larger than anything.
  template <class Text>
  void note(double error, double limit, Text&& text) {
    const double ratio = std::isnan(error) ? std::numeric_limits<double>::infinity() : error / limit;
    report_.passed &= ratio <= 1;
    if (ratio <= report_.largest_ratio && !report_.worst.empty()) return;
    report_.largest_ratio = ratio;
    report_.worst = text();
  }

  const CheckedFunction& f_;
  const GradientCheckOptions& options_;
  Context context_;
  std::vector<Block> blocks_;
  std::size_t input_count_ = 0;
  BranchLog base_branches_;
  double weight_norm_ = 1;
  double base_value_ = 0;
  double fused_value_ = 0;
  GradientCheckReport report_;
};

}  // namespace

GradientCheckReport gradient_check(const CheckedFunction& f, std::span<const Tensor> inputs,
                                   const GradientCheckOptions& options) {
  require<ValueError>(static_cast<bool>(f), "gradient_check: the function is empty");
  return Checker(f, inputs, options).run();
}

}  // namespace fusegrad
