// Times whole training steps: forward, mean squared error, backward, Adam, on resident random data.
//
//   train_step --device cpu --workloads cpu-A,cpu-B --threads 2
//
// Prints one JSON object a workload, in the format of bench/peers.py:
//   {"workload", "peer", "mode", "policy", "device", "us", "peak_mib", "threads", "steps_per_wait", "warm_up_s",
//    "products", "rejected"}
// `products` is the library that multiplies: "eigen", "onednn" (beside Eigen, where it is faster; FUSEGRAD_ONEDNN=off
// forbids it) or "cublaslt".
// Mode eager: `us` is the median over single steps, each with a wait for the device. Mode graph: the step is captured
// (Step) and replayed back to back, in blocks of `steps_per_wait` replays with one wait at the end; `us` is the median
// over blocks, as for the captured graphs and jitted steps of the peers. On a CPU a captured step just runs. Both after
// a warm-up; `warm_up_s` is what the first five steps took, with all choices that they made. Hidden layers are relu,
// all layers have biases, the output has no activation. Policy bf16 keeps fp32 master weights, gradients and optimizer
// state.
#include <cstdio>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/measure.h"
#include "bench/workloads.h"

#include <fusegrad/autograd/step.h>
#include <fusegrad/fusegrad.h>

namespace fg = fusegrad;
namespace bench = fusegrad::bench;

namespace {

struct Options {
  std::string device = "cpu";
  std::vector<std::string> names;
  std::string mode = "eager";
  int threads = 0;  // 0: all
  bench::TimingOptions timing;
  bool fusion = true;
  bool branches = true;
  fg::PlanPolicy plans = fg::PlanPolicy::heuristic;
  bool explain = false;
  bool list = false;
};

void run(const bench::TrainingWorkload& workload, const Options& options) {
  fg::ContextOptions context_options{.fusion = options.fusion ? fg::Fusion::on : fg::Fusion::off,
                                     .plans = options.plans};
  if (options.threads != 0) context_options.threads = options.threads;
  const fg::Context context = bench::context_for(options.device, workload.policy, context_options);
  const fg::Dtype dtype = bench::storage_dtype(workload.policy);
  const fg::StepInput like[] = {{{workload.batch, workload.widths.front()}, dtype},
                                {{workload.batch, workload.widths.back()}, fg::Dtype::f32}};
  const fg::Mlp net(context, {.widths = workload.widths, .dtype = dtype, .seed = 1});
  fg::Adam optimizer(net.parameters(), {.learning_rate = 1e-4});
  const auto record = [&](fg::Tape& tape, const fg::Tensor& batch, const fg::Tensor& wanted) {
    fg::Var loss = fg::mse_loss(net(tape.input(batch)), wanted);
    tape.backward(loss);
    optimizer.step();
    return loss;
  };
  const bool graph = options.mode == "graph";
  std::optional<fg::Step> captured;
  std::vector<fg::Tensor> data;  // resident; a step takes its own tensors without a copy
  if (graph) {
    captured.emplace(context, record, fg::StepOptions{.branches = options.branches});
    data = captured->inputs(like);
  } else {
    for (const fg::StepInput& input : like) data.push_back(fg::Tensor::empty(context, input.shape, input.dtype));
  }
  for (std::uint64_t i = 0; i < 2; ++i)
    data[i].copy_from(bench::random_tensor(context, like[i].shape, like[i].dtype, i + 1));
  const fg::Tensor& x = data[0];
  const fg::Tensor& target = data[1];
  const auto step = [&] {
    if (captured) {
      (*captured)(x, target);
    } else {
      fg::Tape tape(context);
      record(tape, x, target);
    }
  };
  const bench::Pace pace = graph ? bench::Pace::back_to_back : bench::Pace::single;
  const bench::Timing timing = bench::time_step(context, step, pace, options.timing);
  const std::string_view products = options.device == "gpu" ? "cublaslt" : fg::name_of(context.products());
  const nlohmann::ordered_json line{{"workload", workload.name},
                                    {"peer", bench::peer_name(context, options.mode)},
                                    {"mode", options.mode},
                                    {"policy", workload.policy},
                                    {"device", options.device},
                                    {"us", bench::rounded(timing.us)},
                                    {"peak_mib", bench::peak_mib(context)},
                                    {"threads", context.threads()},
                                    {"steps_per_wait", timing.steps_per_wait},
                                    {"warm_up_s", bench::rounded(timing.first_steps_s, 3)},
                                    {"products", products},
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
  app.add_option("--mode", options.mode, "eager: launch after launch; graph: captured once and replayed")
      ->check(CLI::IsMember({"eager", "graph"}));
  app.add_option("--threads", options.threads, "CPU threads (default: all cores)")->check(CLI::Range(1, 1024));
  app.add_option("--repeats", options.timing.repeats, "timed steps")->check(CLI::PositiveNumber);
  app.add_option("--warm-up", options.timing.warm_up_seconds, "seconds of steps before each workload is timed")
      ->check(CLI::Range(0.0, 60.0));
  app.add_flag("!--no-fusion", options.fusion, "run the unfused definition");
  const std::map<std::string, fg::PlanPolicy> policies{{"heuristic", fg::PlanPolicy::heuristic},
                                                       {"measure", fg::PlanPolicy::measure}};
  app.add_option("--plans", options.plans, "heuristic or measure: how a GPU's algorithms and strategies are chosen")
      ->transform(CLI::CheckedTransformer(policies));
  app.add_flag("!--no-branches", options.branches, "keep independent work in a graph in one line");
  app.add_flag("--explain", options.explain, "also print how each part of a step ran");
  app.add_flag("--list", options.list, "print what the workloads are, and time nothing");
  CLI11_PARSE(app, argc, argv);
  try {
    for (const auto& workload : bench::select(bench::training_workloads(), options.names, options.device)) {
      if (options.list) {
        fmt::print("{}\n", bench::to_json(workload));
      } else {
        run(workload, options);
      }
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "train_step: {}\n", error.what());
    return 1;
  }
  return 0;
}
