// Times single ops through the public interface, on the CPU and on the GPU if there is one (Google Benchmark):
//
//   micro --benchmark_filter=linear/.*cpu       what Google Benchmark's programs take: --help
//
// Names are op/phase/device/dtype/sizes. "record" is the forward on a training tape, "infer" the one on an inference
// tape, "backward" the sweep of a tape that was recorded outside the timed part. Every timed call ends with a wait for
// the device, so that on a GPU what takes less than some 20 us is launches and waits: bench/cuda/kernel_times times
// kernels alone. Counters: flops (products) or bytes (what is read and written at the least) a second.
#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "bench/measure.h"

#include <fusegrad/fusegrad.h>

namespace fusegrad::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// What a second of a benchmark is worth: at most one of the two.
struct Work {
  double flops = 0;
  double bytes = 0;
};

struct Place {
  Context context;
  std::string name;
};

/// Times `call`, after `prepare`, which is not timed, each time.
void add(const Place& place, const std::string& name, const Work& work, const std::function<void()>& prepare,
         const std::function<void()>& call) {
  const auto body = [context = place.context, work, prepare, call](benchmark::State& state) {
    for (int i = 0; i < 2; ++i) {  // first touches of memory, and choices that are made once
      prepare();
      call();
    }
    for (auto _ : state) {
      prepare();
      context.synchronize();
      const auto start = Clock::now();
      call();
      context.synchronize();
      state.SetIterationTime(std::chrono::duration<double>(Clock::now() - start).count());
    }
    using benchmark::Counter;
    if (work.flops > 0) state.counters["flops"] = Counter(work.flops, Counter::kIsIterationInvariantRate);
    if (work.bytes > 0) state.counters["bytes"] = Counter(work.bytes, Counter::kIsIterationInvariantRate);
  };
  benchmark::RegisterBenchmark(name.c_str(), body)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

void nothing() {}

/// The forward on both kinds of tape, and the backward, of a function of one tensor.
void add_op(const Place& place, const std::string& op, const std::string& sizes, const Tensor& x, const Work& forward,
            const Work& backward, const std::function<Var(Tape&, const Var&)>& function,
            const std::function<void()>& clear = nothing) {
  const Context context = place.context;
  const auto name = [&](const char* phase) {
    return fmt::format("{}/{}/{}/{}/{}", op, phase, place.name, name_of(x.dtype()), sizes);
  };
  const auto run = [context, x, function](Mode mode) {
    Tape tape(context, mode);
    const Var y = function(tape, mode == Mode::training ? tape.variable(x) : tape.input(x));
  };
  add(place, name("infer"), forward, nothing, [run] { run(Mode::inference); });
  add(place, name("record"), forward, nothing, [run] { run(Mode::training); });
  // The tape of an iteration lives until the next one makes its own.
  struct Recorded {
    std::optional<Tape> tape;
    Var y;
    Tensor seed;
  };
  const auto recorded = std::make_shared<Recorded>();
  const auto prepare = [context, x, function, clear, recorded] {
    clear();
    recorded->y = Var();
    recorded->tape.emplace(context);
    recorded->y = function(*recorded->tape, recorded->tape->variable(x));
    if (!recorded->seed.defined()) recorded->seed = random_tensor(context, recorded->y.shape(), recorded->y.dtype(), 9);
  };
  add(place, name("backward"), backward, prepare,
      [recorded] { recorded->tape->backward(recorded->y, recorded->seed); });
}

struct LinearSizes {
  std::int64_t batch = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
};

void add_linear(const Place& place, Dtype dtype, const LinearSizes& sizes, Activation activation) {
  const LinearLayer layer(place.context,
                          {.in = sizes.in, .out = sizes.out, .activation = activation, .dtype = dtype, .seed = 1});
  const double flops = 2.0 * static_cast<double>(sizes.batch) * static_cast<double>(sizes.in * sizes.out);
  add_op(
      place, fmt::format("linear_{}", name_of(activation)), fmt::format("{}x{}x{}", sizes.batch, sizes.in, sizes.out),
      random_tensor(place.context, {sizes.batch, sizes.in}, dtype, 1), {.flops = flops}, {.flops = 2 * flops},
      [layer](Tape&, const Var& x) { return layer(x); }, [layer] { layer.parameters().clear_gradients(); });
}

void add_activation(const Place& place, Dtype dtype, std::int64_t rows, std::int64_t cols, Activation activation) {
  const Tensor x = random_tensor(place.context, {rows, cols}, dtype, 1);
  const auto bytes = static_cast<double>(x.bytes());
  add_op(place, std::string(name_of(activation)), fmt::format("{}x{}", rows, cols), x, {.bytes = 2 * bytes},
         {.bytes = 2 * bytes}, [activation](Tape&, const Var& v) { return activate(v, activation); });
}

void add_softmax_cross_entropy(const Place& place, Dtype dtype, std::int64_t batch, std::int64_t classes) {
  const Tensor x = random_tensor(place.context, {batch, classes}, dtype, 1);
  std::vector<std::int32_t> labels(static_cast<std::size_t>(batch));
  for (std::size_t i = 0; i < labels.size(); ++i)
    labels[i] = static_cast<std::int32_t>(i) % static_cast<std::int32_t>(classes);
  const Tensor label = Tensor::from(place.context, {batch}, labels);
  const auto bytes = static_cast<double>(x.bytes());
  add_op(place, "softmax_cross_entropy", fmt::format("{}x{}", batch, classes), x, {.bytes = bytes},
         {.bytes = 2 * bytes}, [label](Tape&, const Var& v) { return softmax_cross_entropy(v, label); });
}

/// A step of an optimizer from gradients that a backward outside the timed part has left.
template <class Algorithm>
void add_optimizer(const Place& place, const std::string& op, Dtype dtype, std::int64_t parameters, double moved) {
  ParameterSet set(place.context, dtype);
  set.add("w", {parameters}, [](std::span<float> values) { std::ranges::fill(values, 0.5f); });
  const auto optimizer = std::make_shared<Algorithm>(set);
  const Context context = place.context;
  const auto prepare = [context, set] {
    Tape tape(context);
    tape.backward(sum(tape.parameter(set[0])));
  };
  add(place, fmt::format("{}/step/{}/{}/{}", op, place.name, name_of(dtype), parameters),
      {.bytes = moved * static_cast<double>(parameters)}, prepare, [optimizer] { optimizer->step(); });
}

/// A chain of 100 additions of one element: the tape's own work, kernels of next to nothing included.
void add_tape(const Place& place) {
  const Tensor x = Tensor::full(place.context, {1}, Dtype::f32, 1);
  add_op(place, "tape", "100_adds_of_1", x, {}, {}, [](Tape&, const Var& v) {
    Var y = v;
    for (int i = 0; i < 100; ++i) y = add(y, v);
    return y;
  });
}

void add_all(const Place& place) {
  const bool gpu = place.context.device().type == DeviceType::cuda;
  const std::vector<LinearSizes> shapes =
      gpu ? std::vector<LinearSizes>{{1024, 1024, 1024}, {4096, 2048, 2048}, {262144, 64, 64}}
          : std::vector<LinearSizes>{{32, 64, 64}, {128, 784, 512}, {1024, 1024, 1024}, {16384, 64, 64}};
  const Dtype dtype = gpu ? Dtype::bf16 : Dtype::f32;
  for (const LinearSizes& sizes : shapes) {
    for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_tanh}) {
      add_linear(place, dtype, sizes, activation);
    }
  }
  for (const Activation activation : {Activation::relu, Activation::gelu_tanh, Activation::gelu_erf}) {
    add_activation(place, dtype, gpu ? 16384 : 1024, gpu ? 4096 : 1024, activation);
  }
  add_softmax_cross_entropy(place, dtype, 64, 10);
  add_softmax_cross_entropy(place, dtype, gpu ? 16384 : 1024, gpu ? 4096 : 1000);
  // Bytes a parameter: gradient read, values and moments read and written, 16-bit values written beside fp32 masters.
  const std::int64_t parameters = gpu ? std::int64_t{64} << 20 : std::int64_t{1} << 20;
  add_optimizer<Sgd>(place, "sgd", dtype, parameters, gpu ? 14 : 12);
  add_optimizer<Adam>(place, "adam", dtype, parameters, gpu ? 30 : 28);
  add_tape(place);
}

}  // namespace
}  // namespace fusegrad::bench

int main(int argc, char** argv) {
  namespace fg = fusegrad;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  try {
    fg::bench::add_all({fg::Context::cpu(), "cpu"});
    const fg::Context best = fg::Context::best();
    if (best.device().type == fg::DeviceType::cuda) fg::bench::add_all({best, "gpu"});
    benchmark::RunSpecifiedBenchmarks();
  } catch (const std::exception& error) {
    fmt::print(stderr, "micro: {}\n", error.what());
    return 1;
  }
  benchmark::Shutdown();
  return 0;
}
