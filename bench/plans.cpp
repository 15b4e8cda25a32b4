// Shows how the training step of a multi-layer perceptron is run on this machine:
//
//   fusegrad-plans --batch 4096 --widths 2048,2048,2048 --dtype bf16
//
// On a GPU every product and every fused step is measured once (PlanPolicy::measure). Printed are, for each, the
// strategies or algorithms with their microseconds, the chosen one first, and what was rejected. --save and --load are
// for plan files (ops/plans.h). On a CPU there is one strategy, and the program prints how the step ran.
#include <chrono>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fusegrad/fusegrad.h>

namespace fg = fusegrad;

namespace {

struct Options {
  std::int64_t batch = 4096;
  std::vector<std::int64_t> widths{2048, 2048, 2048};
  std::string dtype = "bf16";
  std::string math = "fp32";
  std::string activation = "relu";
  std::string device = "best";
  bool deterministic = false;
  double warm_up = 0;
  std::string load;
  bool verify = true;
  std::string save;
  bool json = false;
};

const std::map<std::string, fg::Dtype> kDtypes{
    {"f64", fg::Dtype::f64}, {"f32", fg::Dtype::f32}, {"bf16", fg::Dtype::bf16}, {"f16", fg::Dtype::f16}};
const std::map<std::string, fg::Activation> kActivations{{"none", fg::Activation::none},
                                                         {"relu", fg::Activation::relu},
                                                         {"gelu_tanh", fg::Activation::gelu_tanh},
                                                         {"gelu_erf", fg::Activation::gelu_erf}};

/// A context for the options, with or without measurement.
fg::Context context_for(const Options& options, fg::PlanPolicy plans) {
  // Plans of an earlier run are asked for by name only.
  const fg::ContextOptions made{.math = options.math == "tf32" ? fg::MathMode::tf32 : fg::MathMode::fp32,
                                .strategy = fg::Strategy::automatic,
                                .plans = plans,
                                .deterministic = options.deterministic,
                                .plan_cache = ""};
  if (options.device == "best") return fg::Context::best(made);
  return options.device == "cuda" ? fg::Context::cuda(made) : fg::Context::cpu(made);
}

/// One forward and backward of the network; how it ran.
struct Explained {
  std::string text;
  std::string json;
};
Explained run_step(const fg::Context& context, const Options& options) {
  const fg::Dtype dtype = kDtypes.at(options.dtype);
  const fg::Mlp net(
      context,
      {.widths = options.widths, .activation = kActivations.at(options.activation), .dtype = dtype, .seed = 1});
  const fg::Tensor x = fg::Tensor::full(context, {options.batch, options.widths.front()}, dtype, 0.5);
  fg::Tape tape(context);
  tape.backward(fg::mean(net(tape.input(x))));
  context.synchronize();
  return {tape.explain(), tape.explain(fg::ExplainFormat::json)};
}

/// Keeps the device busy, so that its clocks are what they are in training.
void warm_up(const Options& options) {
  const fg::Context context = context_for(options, fg::PlanPolicy::heuristic);
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < options.warm_up) {
    run_step(context, options);
  }
}

void print_table(const std::vector<fg::PlanReport>& plans, fg::PlanKind kind, const char* title) {
  fmt::print("\n{}\n", title);
  for (const fg::PlanReport& plan : plans) {
    if (plan.kind != kind) continue;
    fmt::print("  {}  [{}]\n", plan.what, name_of(plan.origin));
    if (plan.candidates.empty()) fmt::print("    * cuBLASLt has nothing that is right: another way runs\n");
    const char* mark = "*";
    for (const auto& [name, us] : plan.candidates) {
      const std::string time = us > 0 ? fmt::format("{:10.2f} us", us) : fmt::format("{:>13}", "not measured");
      fmt::print("    {} {:<48} {}\n", mark, name, time);
      mark = " ";
    }
    if (!plan.remark.empty()) fmt::print("      {}\n", plan.remark);
  }
}

nlohmann::ordered_json json_of(const fg::PlanReport& plan) {
  nlohmann::ordered_json candidates = nlohmann::ordered_json::array();
  for (const auto& [name, us] : plan.candidates) candidates.push_back({{"name", name}, {"us", us}});
  return {{"kind", plan.kind == fg::PlanKind::step ? "step" : "product"},
          {"what", plan.what},
          {"origin", name_of(plan.origin)},
          {"candidates", candidates},
          {"remark", plan.remark}};
}

void run(const Options& options) {
  if (options.warm_up > 0) warm_up(options);
  const fg::Context context = context_for(options, fg::PlanPolicy::measure);
  fg::PlanFileReport loaded;
  if (!options.load.empty()) {
    loaded = fg::load_plans(context, options.load, {.verify = options.verify});
    if (!loaded.ignored.empty()) {
      fmt::print(stderr, "fusegrad-plans: \"{}\" was ignored: {}\n", options.load, loaded.ignored);
    }
  }
  const Explained explained = run_step(context, options);
  const std::vector<fg::PlanReport> plans = fg::plans(context);
  const fg::Counters& counters = context.counters();
  for (const std::string& warning : context.warnings()) fmt::print(stderr, "fusegrad-plans: {}\n", warning);
  if (options.json) {
    nlohmann::ordered_json all{{"device", context.device().to_string()},
                               {"batch", options.batch},
                               {"widths", options.widths},
                               {"dtype", options.dtype},
                               {"math", options.math},
                               {"activation", options.activation},
                               {"measured", counters.plans_measured},
                               {"loaded", counters.plans_loaded},
                               {"rejected", counters.rejected_candidates},
                               {"plans", nlohmann::ordered_json::array()}};
    for (const fg::PlanReport& plan : plans) all["plans"].push_back(json_of(plan));
    all["explain"] = nlohmann::ordered_json::parse(explained.json);
    fmt::print("{}\n", all.dump(1));
  } else {
    fmt::print("{}, batch {}, widths {}, {}, {}\n", context.device().to_string(), options.batch,
               fmt::join(options.widths, ", "), options.dtype, options.activation);
    if (context.device().type == fg::DeviceType::cpu) {
      fmt::print("A CPU has one strategy: nothing is measured. The step ran so:\n\n{}", explained.text);
    } else {
      fmt::print("{} measured, {} loaded, {} algorithms rejected; * is what runs\n", counters.plans_measured,
                 counters.plans_loaded, counters.rejected_candidates);
      print_table(plans, fg::PlanKind::step, "Fused steps, each with the products it needs");
      print_table(plans, fg::PlanKind::product, "Products: rows x columns x length of the sums");
    }
  }
  if (!options.save.empty()) fg::save_plans(context, options.save);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Shows which strategies and algorithms run a training step on this machine, and what they take.");
  app.add_option("--batch", options.batch, "rows of the input")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--widths", options.widths, "features of input, hidden layers and output, separated by commas")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--dtype", options.dtype, "f64, f32, bf16 or f16")
      ->check(CLI::IsMember({"f64", "f32", "bf16", "f16"}))
      ->capture_default_str();
  app.add_option("--math", options.math, "fp32 or tf32, for products of f32")
      ->check(CLI::IsMember({"fp32", "tf32"}))
      ->capture_default_str();
  app.add_option("--activation", options.activation, "none, relu, gelu_tanh or gelu_erf")
      ->check(CLI::IsMember({"none", "relu", "gelu_tanh", "gelu_erf"}))
      ->capture_default_str();
  app.add_option("--device", options.device, "best, cpu or cuda")
      ->check(CLI::IsMember({"best", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_flag("--deterministic", options.deterministic, "time nothing, verify everything");
  app.add_option("--warm-up", options.warm_up, "seconds of load before the first measurement")
      ->check(CLI::Range(0.0, 60.0));
  app.add_option("--load", options.load, "plan file to read first");
  app.add_flag("!--no-verify", options.verify, "trust the plan file");
  app.add_option("--save", options.save, "plan file to add the plans to");
  app.add_flag("--json", options.json, "print one JSON object");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "fusegrad-plans: {}\n", error.what());
    return 1;
  }
  return 0;
}
