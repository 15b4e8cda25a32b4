// Checks the gradient of every op, and of whole networks, against finite differences of the unfused forward, and prints
// a table. The exit code is 1 if any row is over its bound.
//
//   check_gradients [--device cpu|cuda] [--seed N]
#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <fusegrad/fusegrad.h>

namespace fg = fusegrad;

namespace {

/// One row of the table.
struct Check {
  std::string op;
  std::vector<fg::Shape> shapes;
  fg::CheckedFunction function;
  /// On a GPU the fused GELU of f64 is good to 3e-10 only.
  bool gelu = false;
};

class Table {
 public:
  Table(const fg::Context& context, std::uint64_t seed) : context_(context), seed_(seed) {
    fmt::print("{:<44} {:<5} {:<7} {:<34} {:>10} {:>10}  {}\n", "op", "dtype", "device", "shapes", "error", "of bound",
               "route");
  }

  void run(const Check& check, const std::optional<fg::ParameterSet>& parameters = std::nullopt) {
    std::vector<fg::Tensor> inputs;
    for (const fg::Shape& shape : check.shapes) inputs.push_back(draw(shape));
    fg::GradientCheckOptions options{.parameters = parameters, .seed = seed_};
    if (check.gelu && context_.device().type == fg::DeviceType::cuda) options.absolute = options.relative = 1e-8;
    const fg::GradientCheckReport report = fg::gradient_check(check.function, inputs, options);
    std::string shapes;
    for (const fg::Shape& shape : check.shapes) shapes += (shapes.empty() ? "" : " ") + shape.to_string();
    fmt::print("{:<44} {:<5} {:<7} {:<34} {:>10.2e} {:>10.2e}  {} smooth, {} frozen{}\n", check.op, "f64",
               context_.device().to_string(), shapes, report.largest_error, report.largest_ratio, report.smooth,
               report.frozen, report.passed ? "" : "  FAILED: " + report.worst);
    failures_ += report.passed ? 0 : 1;
    ++rows_;
  }

  int finish() const {
    fmt::print("{} of {} checks passed\n", rows_ - failures_, rows_);
    return failures_ == 0 ? 0 : 1;
  }

 private:
  /// Values in [-1, 1): in deep compositions the stencil's own error grows with the fifth derivative.
  fg::Tensor draw(const fg::Shape& shape) {
    const fg::Random random(seed_, drawn_++);
    std::vector<double> values(static_cast<std::size_t>(shape.size()));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 2.0 * static_cast<double>(random.uniform(i)) - 1.0;
    return fg::Tensor::from(context_, shape, values);
  }

  fg::Context context_;
  std::uint64_t seed_;
  std::uint64_t drawn_ = 0;
  int rows_ = 0;
  int failures_ = 0;
};

using Vars = std::span<const fg::Var>;

constexpr fg::Activation kActivations[] = {fg::Activation::none, fg::Activation::relu, fg::Activation::gelu_tanh,
                                           fg::Activation::gelu_erf};

void check_linear(Table& table) {
  for (const fg::Activation activation : kActivations) {
    const bool gelu = activation == fg::Activation::gelu_tanh || activation == fg::Activation::gelu_erf;
    const std::string name = fmt::format("linear, {}", fg::name_of(activation));
    const fg::LinearOptions options{.activation = activation};
    for (const std::int64_t batch : {1, 5}) {
      table.run({name,
                 {{batch, 7}, {4, 7}, {4}},
                 [=](fg::Tape&, Vars v) { return fg::linear(v[0], v[1], v[2], options); },
                 gelu});
    }
    table.run({name + ", no bias",
               {{5, 7}, {4, 7}},
               [=](fg::Tape&, Vars v) { return fg::linear(v[0], v[1], options); },
               gelu});
    table.run({name + ", then linear (absorbs)",
               {{5, 7}, {6, 7}, {6}, {3, 6}},
               [=](fg::Tape&, Vars v) { return fg::linear(fg::linear(v[0], v[1], v[2], options), v[3]); },
               gelu});
    table.run({name + ", two consumers",
               {{5, 7}, {6, 7}, {6}, {3, 6}, {3, 6}},
               [=](fg::Tape&, Vars v) {
                 const fg::Var h = fg::linear(v[0], v[1], v[2], options);
                 return fg::linear(h, v[3]) * fg::linear(h, v[4]);
               },
               gelu});
    table.run({name + ", residual, shared weights",
               {{5, 6}, {6, 6}, {6}},
               [=](fg::Tape&, Vars v) {
                 const fg::Var h = v[0] + fg::linear(v[0], v[1], v[2], options);
                 return h + fg::linear(h, v[1], v[2], options);
               },
               gelu});
  }
}

void check_elementwise(Table& table) {
  table.run({"relu", {{5, 7}}, [](fg::Tape&, Vars v) { return fg::relu(v[0]); }});
  table.run({"gelu_tanh", {{5, 7}}, [](fg::Tape&, Vars v) { return fg::gelu_tanh(v[0]); }, true});
  table.run({"gelu_erf", {{5, 7}}, [](fg::Tape&, Vars v) { return fg::gelu_erf(v[0]); }, true});
  table.run({"add", {{5, 7}, {5, 7}}, [](fg::Tape&, Vars v) { return v[0] + v[1]; }});
  table.run({"sub", {{5, 7}, {5, 7}}, [](fg::Tape&, Vars v) { return v[0] - v[1]; }});
  table.run({"mul", {{5, 7}, {5, 7}}, [](fg::Tape&, Vars v) { return v[0] * v[1]; }});
  table.run({"mul, one operand twice", {{5, 7}}, [](fg::Tape&, Vars v) { return v[0] * v[0]; }});
  table.run({"scale", {{5, 7}}, [](fg::Tape&, Vars v) { return -2.5 * v[0]; }});
  table.run({"sum", {{5, 7}}, [](fg::Tape&, Vars v) { return fg::sum(v[0]); }});
  table.run({"mean", {{5, 7}}, [](fg::Tape&, Vars v) { return fg::mean(v[0]); }});
  table.run({"reshape", {{4, 6}}, [](fg::Tape&, Vars v) { return fg::relu(fg::reshape(v[0], {8, 3})); }});
}

void check_losses(Table& table, const fg::Context& context) {
  const auto label = fg::Tensor::from<std::int32_t>(context, {6}, {0, 4, 2, 1, 3, 2});
  const auto weights = fg::Tensor::from<double>(context, {5}, {1, 2, 0.5, 3, 0.25});
  const auto target = fg::Tensor::from<double>(context, {2, 3}, {0.5, -1, 2, 0.25, 1, -3});
  using fg::Reduction;
  for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    const char* name = reduction == Reduction::mean ? "mean" : reduction == Reduction::sum ? "sum" : "none";
    table.run({fmt::format("mse_loss, {}", name), {{2, 3}}, [=](fg::Tape&, Vars v) {
                 return fg::mse_loss(v[0], target, {.reduction = reduction});
               }});
    table.run({fmt::format("softmax_cross_entropy, {}", name), {{6, 5}}, [=](fg::Tape&, Vars v) {
                 return fg::softmax_cross_entropy(v[0], label, {.reduction = reduction});
               }});
    table.run({fmt::format("softmax_cross_entropy, {}, all options", name), {{6, 5}}, [=](fg::Tape&, Vars v) {
                 return fg::softmax_cross_entropy(
                     v[0], label,
                     {.reduction = reduction, .label_smoothing = 0.1, .ignore_index = 2, .class_weights = weights});
               }});
  }
}

void check_networks(Table& table, const fg::Context& context, std::uint64_t seed) {
  const auto label = fg::Tensor::from<std::int32_t>(context, {6}, {0, 4, 2, 1, 3, 2});
  for (const fg::Activation activation : kActivations) {
    const bool gelu = activation == fg::Activation::gelu_tanh || activation == fg::Activation::gelu_erf;
    const fg::Mlp net(context,
                      {.widths = {9, 13, 11, 5}, .activation = activation, .dtype = fg::Dtype::f64, .seed = seed});
    table.run({fmt::format("mlp 9 13 11 5, {}, cross entropy", fg::name_of(activation)),
               {{6, 9}},
               [&](fg::Tape&, Vars v) { return fg::softmax_cross_entropy(net(v[0]), label); },
               gelu},
              net.parameters());
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::string device = "cpu";
    std::uint64_t seed = 1;
    CLI::App app("Checks the gradients of every op and of whole networks in f64.");
    app.add_option("--device", device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
    app.add_option("--seed", seed, "of the inputs and weights");
    CLI11_PARSE(app, argc, argv);
    const fg::Context context = device == "cuda" ? fg::Context::cuda() : fg::Context::cpu();
    Table table(context, seed);
    check_linear(table);
    check_elementwise(table);
    check_losses(table, context);
    check_networks(table, context, seed);
    return table.finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "check_gradients: %s\n", error.what());
    return 1;
  }
}
