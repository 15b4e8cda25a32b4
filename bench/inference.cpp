// Times forward passes without gradients, in the dtype of inference: a feed-forward block of two fused layers (I1 to
// I6), and P, one fused product of 65536 x 16384 by 16384 x 8192.
//
//   inference --device gpu --workloads I1,I2 --activations relu,gelu
//
// Prints one JSON object a workload and activation, in the format of bench/peers.py:
//   {"workload", "peer", "mode", "policy", "device", "us", "peak_mib", "activation", "threads", "steps_per_wait",
//    "weight_mib"}
// Mode eager: `us` is the median over single passes, each with a wait for the device. Mode graph: the pass is captured
// (Step) and replayed back to back, in blocks of `steps_per_wait` replays with one wait at the end; `us` is the median
// over blocks. A captured pass also copies its input in and its result out, as Step does for training. P runs twice:
// "P" writes the mask that a backward would read, as a training step's forward does, "P no mask" does not. `weight_mib`
// is what a pass must read at the least, which bounds passes over few tokens. gelu is the tanh form.
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
  std::string device = "gpu";
  std::vector<std::string> names;
  std::vector<std::string> activations{"relu", "gelu"};
  std::string mode = "eager";
  int threads = 0;  // 0: all
  bench::TimingOptions timing;
  fg::PlanPolicy plans = fg::PlanPolicy::heuristic;
  bool list = false;
};

fg::Shape input_shape(const bench::InferenceWorkload& workload) {
  if (workload.batch.size() == 2) return {workload.batch[0], workload.batch[1], workload.widths.front()};
  return {workload.batch[0], workload.widths.front()};
}

void run(const bench::InferenceWorkload& workload, const std::string& activation, const Options& options) {
  fg::ContextOptions context_options{.plans = options.plans};
  if (options.threads != 0) context_options.threads = options.threads;
  const std::string_view policy = bench::is_for_cpu(workload.name) ? "fp32" : "bf16";
  const fg::Context context = bench::context_for(options.device, policy, context_options);
  const fg::Dtype dtype = bench::storage_dtype(policy);
  const bool single_product = workload.widths.size() == 2;
  const fg::Activation kind = activation == "relu" ? fg::Activation::relu : fg::Activation::gelu_tanh;
  const fg::Mlp net(context, {.widths = workload.widths,
                              .activation = kind,
                              .output_activation = single_product ? kind : fg::Activation::none,
                              .dtype = dtype,
                              .seed = 1});
  const fg::Tensor x = bench::random_tensor(context, input_shape(workload), dtype, 1);

  const auto report = [&](const std::string& name, fg::Mode tape_mode) {
    const bool graph = options.mode == "graph";
    const fg::Tensor unused = fg::Tensor::zeros(context, {1}, fg::Dtype::f32);
    // The step's own tape records nothing; with a mask the pass is one of training.
    fg::Tape tape(context, tape_mode);
    std::optional<fg::Step> captured;
    if (graph) {
      captured.emplace(
          context,
          [&](fg::Tape&, const fg::Tensor& input, const fg::Tensor&) {
            tape.reset();
            return net(tape.input(input));
          },
          fg::StepOptions{.mode = fg::Mode::inference});
    }
    const auto pass = [&] {
      if (captured) {
        (*captured)(x, unused);
      } else {
        tape.reset();
        const fg::Var y = net(tape.input(x));
      }
    };
    const bench::Pace pace = graph ? bench::Pace::back_to_back : bench::Pace::single;
    const bench::Timing timing = bench::time_step(context, pass, pace, options.timing);
    const double weight_bytes =
        static_cast<double>(net.parameters().value_count()) * static_cast<double>(size_of(dtype));
    const nlohmann::ordered_json line{{"workload", name},
                                      {"peer", bench::peer_name(context, options.mode)},
                                      {"mode", options.mode},
                                      {"policy", policy},
                                      {"device", options.device},
                                      {"us", bench::rounded(timing.us)},
                                      {"peak_mib", bench::peak_mib(context)},
                                      {"activation", activation},
                                      {"threads", context.threads()},
                                      {"steps_per_wait", timing.steps_per_wait},
                                      {"weight_mib", bench::rounded(weight_bytes / (1 << 20))}};
    fmt::print("{}\n", line.dump());
    std::fflush(stdout);
  };
  if (single_product) {
    report(std::string(workload.name) + " no mask", fg::Mode::inference);
    report(std::string(workload.name), fg::Mode::training);
  } else {
    report(std::string(workload.name), fg::Mode::inference);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times forward passes of fusegrad.");
  app.add_option("--device", options.device, "cpu or gpu")->check(CLI::IsMember({"cpu", "gpu"}));
  app.add_option("--workloads", options.names, "names, separated by commas (default: all of the device)")
      ->delimiter(',');
  app.add_option("--activations", options.activations, "relu, gelu or both")
      ->delimiter(',')
      ->check(CLI::IsMember({"relu", "gelu"}));
  app.add_option("--mode", options.mode, "eager: launch after launch; graph: captured once and replayed")
      ->check(CLI::IsMember({"eager", "graph"}));
  app.add_option("--threads", options.threads, "CPU threads (default: all cores)")->check(CLI::Range(1, 1024));
  app.add_option("--repeats", options.timing.repeats, "timed passes")->check(CLI::PositiveNumber);
  app.add_option("--warm-up", options.timing.warm_up_seconds, "seconds of passes before each workload is timed")
      ->check(CLI::Range(0.0, 60.0));
  const std::map<std::string, fg::PlanPolicy> policies{{"heuristic", fg::PlanPolicy::heuristic},
                                                       {"measure", fg::PlanPolicy::measure}};
  app.add_option("--plans", options.plans, "heuristic or measure: how a GPU's algorithms are chosen")
      ->transform(CLI::CheckedTransformer(policies));
  app.add_flag("--list", options.list, "print what the workloads are, and time nothing");
  CLI11_PARSE(app, argc, argv);
  try {
    for (const auto& workload : bench::select(bench::inference_workloads(), options.names, options.device)) {
      if (options.list) {
        fmt::print("{}\n", bench::to_json(workload));
        continue;
      }
      for (const std::string& activation : options.activations) run(workload, activation, options);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "inference: {}\n", error.what());
    return 1;
  }
  return 0;
}
