// Measures what the host pays for a step's bookkeeping: recording an op, and running its node in backward.
//
//   host_cost                    on the CPU
//   host_cost --device gpu       with the launches of a GPU's kernels in it
//
// Chains of one op on tensors of one element, so that the kernels behind the dispatch have next to nothing to do; one
// thread. Prints one JSON object an op:
//   {"op", "device", "nodes", "record_ns", "backward_ns", "allocations"}
// `record_ns` and `backward_ns` are nanoseconds a node, each the median over repeats; the tape and its three leaves are
// counted in, and so is the sum of the gradients that all nodes send to the leaves they share. `allocations` counts
// calls of operator new, on all threads, in all timed repeats together: it must be 0. On a GPU the host does not wait
// for the device while it is timed; a chain is shorter than the queue of launches.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/measure.h"
#include "tests/support/allocations.h"

#include <fusegrad/fusegrad.h>

namespace fg = fusegrad;
namespace bench = fusegrad::bench;

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string device = "cpu";
  int nodes = 400;
  int repeats = 200;
};

double nanoseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

/// One kind of node: from a value of shape [1, 1] the next one.
struct Op {
  std::string_view name;
  std::function<fg::Var(const fg::Var& x, const fg::Var& w, const fg::Var& b)> record;
};

const std::vector<Op>& ops() {
  static const std::vector<Op> all{
      {"linear", [](const fg::Var& x, const fg::Var& w, const fg::Var& b) { return fg::linear(x, w, b); }},
      {"linear_relu", [](const fg::Var& x, const fg::Var& w,
                         const fg::Var& b) { return fg::linear(x, w, b, {.activation = fg::Activation::relu}); }},
      {"relu", [](const fg::Var& x, const fg::Var&, const fg::Var&) { return fg::relu(x); }},
      {"add", [](const fg::Var& x, const fg::Var& w, const fg::Var&) { return fg::add(x, w); }},
      {"mul", [](const fg::Var& x, const fg::Var& w, const fg::Var&) { return fg::mul(x, w); }},
  };
  return all;
}

void run(const fg::Context& context, const Op& op, const Options& options) {
  // Ones, so that nothing grows or vanishes along the chain.
  fg::ParameterSet set(context);
  const auto ones = [](std::span<float> values) { std::ranges::fill(values, 1.0f); };
  const fg::Parameter weight = set.add("w", {1, 1}, ones);
  const fg::Parameter bias = set.add("b", {1}, [](std::span<float> values) { std::ranges::fill(values, 0.0f); });
  const fg::Tensor input = fg::Tensor::full(context, {1, 1}, fg::Dtype::f32, 1);
  const fg::Tensor seed = fg::Tensor::full(context, {1, 1}, fg::Dtype::f32, 1);
  std::vector<double> record;
  std::vector<double> backward;
  record.reserve(static_cast<std::size_t>(options.repeats));
  backward.reserve(static_cast<std::size_t>(options.repeats));
  std::int64_t before = 0;
  for (int repeat = -5; repeat < options.repeats; ++repeat) {  // the first ones build up what later ones reuse
    if (repeat == 0) before = fg::test::allocations();
    fg::Tape tape(context);
    const auto start = Clock::now();
    const fg::Var w = tape.parameter(weight);
    const fg::Var b = tape.parameter(bias);
    fg::Var x = tape.variable(input);
    for (int i = 0; i < options.nodes; ++i) x = op.record(x, w, b);
    const double record_ns = nanoseconds_since(start);
    context.synchronize();
    const auto turn = Clock::now();
    tape.backward(x, seed);
    const double backward_ns = nanoseconds_since(turn);
    context.synchronize();
    set.clear_gradients();
    if (repeat < 0) continue;
    record.push_back(record_ns / options.nodes);
    backward.push_back(backward_ns / options.nodes);
  }
  const std::int64_t allocations = fg::test::allocations() - before;
  const nlohmann::ordered_json line{{"op", op.name},
                                    {"device", options.device},
                                    {"nodes", options.nodes},
                                    {"record_ns", bench::rounded(bench::median(record), 0)},
                                    {"backward_ns", bench::rounded(bench::median(backward), 0)},
                                    {"allocations", allocations}};
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Measures the host's time for a recorded op and for its node in backward.");
  app.add_option("--device", options.device, "cpu or gpu")->check(CLI::IsMember({"cpu", "gpu"}));
  app.add_option("--nodes", options.nodes, "ops of a chain")->check(CLI::Range(1, 100000));
  app.add_option("--repeats", options.repeats, "chains")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    const fg::Context context = bench::context_for(options.device, "fp32", {.threads = 1});
    for (const Op& op : ops()) run(context, op, options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "host_cost: {}\n", error.what());
    return 1;
  }
  return 0;
}
