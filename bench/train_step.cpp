// Times whole training steps: forward, mean squared error, backward, Adam, on resident random data.
//
//   train_step --device cpu --workloads cpu-A,cpu-B --threads 2
//
// Prints one JSON object a workload, in the format of bench/peers.py:
//   {"workload", "peer", "policy", "device", "us", "peak_mib"}
// `us` is the median over single steps after a warm-up. Hidden layers are relu, all layers have biases, the output has
// no activation. Policy bf16 keeps fp32 master weights, gradients and optimizer state.
#include <algorithm>
#include <chrono>
#include <cmath>
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

struct Workload {
  std::string_view name;
  std::int64_t batch;
  std::vector<std::int64_t> widths;
  std::string_view policy;
};

const std::vector<Workload>& workloads() {
  static const std::vector<Workload> all{
      {"A", 128, {784, 512, 512, 16}, "tf32"},
      {"A2", 1024, {784, 1024, 1024, 1024, 16}, "tf32"},
      {"B", 1024, {784, 1024, 1024, 1024, 16}, "bf16"},
      {"mid", 4096, {2048, 2048, 2048, 2048, 2048}, "bf16"},
      {"C", 16384, {4096, 4096, 4096, 4096, 4096}, "bf16"},
      {"D", 8192, {4096, 16384, 4096}, "bf16"},
      {"E", 262144, {32, 64, 64, 64, 64, 16}, "bf16"},
      {"E2", 262144, {32, 128, 128, 128, 128, 16}, "bf16"},
      {"cpu-small", 32, {64, 64, 64, 10}, "fp32"},
      {"cpu-A", 128, {784, 512, 512, 10}, "fp32"},
      {"cpu-B", 1024, {784, 1024, 1024, 1024, 10}, "fp32"},
      {"cpu-E", 16384, {32, 64, 64, 64, 64, 16}, "fp32"},
  };
  return all;
}

struct Options {
  std::string device = "cpu";
  std::vector<std::string> names;
  int threads = 0;  // 0: all
  int repeats = 40;
  bool fusion = true;
  fg::PlanPolicy plans = fg::PlanPolicy::heuristic;
  bool explain = false;
};

/// Roughly normal values: the sum of four uniform ones. Never zeros, which multiply faster than real data.
fg::Tensor random_tensor(const fg::Context& context, const fg::Shape& shape, fg::Dtype dtype, std::uint64_t stream) {
  const fg::Random random(1, stream);
  std::vector<float> values(static_cast<std::size_t>(shape.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto word = fg::philox({static_cast<std::uint32_t>(i), 0, static_cast<std::uint32_t>(stream), 0}, {1, 0});
    float sum = 0;
    for (const std::uint32_t part : word) sum += static_cast<float>(part >> 8) * 0x1p-24f;
    values[i] = (sum - 2.0f) * std::sqrt(3.0f);
  }
  return fg::Tensor::from(context, shape, values).to(dtype);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string name_of(const Options& options) {
  if (!options.fusion) return "fusegrad unfused";
  return options.plans == fg::PlanPolicy::measure ? "fusegrad measured" : "fusegrad";
}

void run(const Workload& workload, const Options& options) {
  fg::ContextOptions context_options{.fusion = options.fusion ? fg::Fusion::on : fg::Fusion::off};
  if (options.threads != 0) context_options.threads = options.threads;
  if (workload.policy == "tf32") context_options.math = fg::MathMode::tf32;
  context_options.plans = options.plans;
  const fg::Context context =
      options.device == "gpu" ? fg::Context::cuda(context_options) : fg::Context::cpu(context_options);
  const fg::Dtype dtype = workload.policy == "bf16" ? fg::Dtype::bf16 : fg::Dtype::f32;
  const fg::Tensor x = random_tensor(context, {workload.batch, workload.widths.front()}, dtype, 1);
  const fg::Tensor target = random_tensor(context, {workload.batch, workload.widths.back()}, fg::Dtype::f32, 2);
  const fg::Mlp net(context, {.widths = workload.widths, .dtype = dtype, .seed = 1});
  fg::Adam optimizer(net.parameters(), {.learning_rate = 1e-4});
  const auto step = [&] {
    fg::Tape tape(context);
    tape.backward(fg::mse_loss(net(tape.input(x)), target));
    optimizer.step();
  };
  const auto warm_up = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) step();
  context.synchronize();
  const std::chrono::duration<double> warm_up_seconds = std::chrono::steady_clock::now() - warm_up;
  std::vector<double> times;
  for (int i = 0; i < options.repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    step();
    context.synchronize();
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  const auto peak = static_cast<double>(context.memory().peak_in_use) / (1 << 20);
  const nlohmann::ordered_json line{{"workload", workload.name},
                                    {"peer", name_of(options)},
                                    {"policy", workload.policy},
                                    {"device", options.device},
                                    {"us", std::round(median(times) * 10) / 10},
                                    {"peak_mib", std::round(peak * 10) / 10},
                                    {"threads", context.threads()},
                                    {"warm_up_s", std::round(warm_up_seconds.count() * 1000) / 1000},
                                    {"rejected", context.counters().rejected_candidates}};
  fmt::print("{}\n", line.dump());
  if (options.explain) {
    fg::Tape tape(context);
    tape.backward(fg::mse_loss(net(tape.input(x)), target));
    fmt::print("{}", tape.explain());
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times training steps of fusegrad.");
  app.add_option("--device", options.device, "cpu or gpu")->check(CLI::IsMember({"cpu", "gpu"}));
  app.add_option("--workloads", options.names, "names, separated by commas (default: all of the device)")
      ->delimiter(',');
  app.add_option("--threads", options.threads, "CPU threads (default: all cores)")->check(CLI::Range(1, 1024));
  app.add_option("--repeats", options.repeats, "timed steps")->check(CLI::PositiveNumber);
  app.add_flag("!--no-fusion", options.fusion, "run the unfused definition");
  const std::map<std::string, fg::PlanPolicy> policies{{"heuristic", fg::PlanPolicy::heuristic},
                                                       {"measure", fg::PlanPolicy::measure}};
  app.add_option("--plans", options.plans, "heuristic or measure: how a GPU's algorithms and strategies are chosen")
      ->transform(CLI::CheckedTransformer(policies));
  app.add_flag("--explain", options.explain, "also print how each part of a step ran");
  CLI11_PARSE(app, argc, argv);
  try {
    for (const std::string& name : options.names) {
      if (std::ranges::find(workloads(), name, &Workload::name) == workloads().end()) {
        throw fg::ValueError(fmt::format("there is no workload \"{}\"", name));
      }
    }
    for (const Workload& workload : workloads()) {
      const bool wanted = options.names.empty()
                              ? workload.name.starts_with("cpu") == (options.device == "cpu")
                              : std::ranges::find(options.names, workload.name) != options.names.end();
      if (wanted) run(workload, options);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "train_step: {}\n", error.what());
    return 1;
  }
  return 0;
}
