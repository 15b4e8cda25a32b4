// Times the matrix products of the workloads and nothing else: the time that no library can leave out without products
// of its own. Needs a GPU.
//
//   products_only --workloads A,B,I1
//
// A training step has each layer's forward product, its weight gradient, and its input gradient except in the first
// layer; a forward pass has the first of them. Every product runs plainly, without epilogue, by the fastest of the
// algorithms that cuBLASLt's heuristic offers, in one CUDA graph. A step is captured twice: on one stream, and with the
// weight gradients on a second stream beside the next input gradient. Prints one JSON object a workload:
//   {"workload", "peer", "mode", "policy", "device", "us", "peak_mib", "streams", "us_one_stream", "us_two_streams"}
// `us` is the smaller of the two and `streams` says which. The two are timed in turn, in blocks of launches back to
// back with one wait a block; the medians over blocks count.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/cuda/plain_product.h"
#include "bench/measure.h"
#include "bench/workloads.h"

#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/tape.h>
#include <fusegrad/ops/arithmetic.h>

namespace fusegrad::bench {
namespace {

constexpr int kTurns = 4;  // each captured step is timed so many times, in turn

struct Stream {
  cudaStream_t value = nullptr;
  Stream() { FUSEGRAD_CUDA(cudaStreamCreateWithFlags(&value, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(value); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
};

struct Event {
  cudaEvent_t value = nullptr;
  Event() { FUSEGRAD_CUDA(cudaEventCreateWithFlags(&value, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(value); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
};

/// `to` goes on after what `from` has been given so far.
void order(cudaStream_t from, cudaStream_t to, const Event& event) {
  FUSEGRAD_CUDA(cudaEventRecord(event.value, from));
  FUSEGRAD_CUDA(cudaStreamWaitEvent(to, event.value, 0));
}

/// The products of one workload on its operands.
class Products {
 public:
  Products(const Context& context, cudaStream_t main, cudaStream_t side, std::int64_t batch,
           const std::vector<std::int64_t>& widths, std::string_view policy, bool training)
      : main_(main), side_(side), library_(context) {
    const Dtype dtype = storage_dtype(policy);
    const std::size_t layers = widths.size() - 1;
    Tensor x = random_tensor(context, {batch, widths[0]}, dtype, 1);
    std::vector<Tensor> inputs;
    std::vector<Tensor> weights;
    for (std::size_t i = 0; i < layers; ++i) {
      inputs.push_back(x);
      weights.push_back(scaled_weights(context, widths[i + 1], widths[i], dtype, i + 2));
      const Tensor y = Tensor::empty(context, {batch, widths[i + 1]}, dtype);
      forward_.emplace_back(library_, main, Form::forward, x, weights[i], y, context.math());
      forward_.back().run(main, 0);  // so that the next layer is chosen on values like those it will see
      x = y;
    }
    if (!training) return;
    Tensor dy = random_tensor(context, {batch, widths[layers]}, dtype, 100);
    for (std::size_t i = layers; i-- > 0;) {
      // Gradients of weights are f32 whatever the policy.
      const Tensor dw = Tensor::empty(context, weights[i].shape(), Dtype::f32);
      weight_gradients_.emplace_back(library_, main, Form::weight_gradient, dy, inputs[i], dw, context.math());
      if (i == 0) break;
      const Tensor dx = Tensor::empty(context, inputs[i].shape(), dtype);
      input_gradients_.emplace_back(library_, main, Form::input_gradient, dy, weights[i], dx, context.math());
      input_gradients_.back().run(main, 0);
      dy = dx;
    }
  }

  void run(int streams) const {
    for (const PlainProduct& product : forward_) product.run(main_, 0);
    for (std::size_t i = 0; i < weight_gradients_.size(); ++i) {
      const bool last = i == input_gradients_.size();  // of the first layer: nothing to run beside
      const bool beside = streams == 2 && !last;
      if (beside) order(main_, side_, fork_);
      weight_gradients_[i].run(beside ? side_ : main_, beside ? 1 : 0);
      if (!last) input_gradients_[i].run(main_, 0);
    }
    if (streams == 2 && !input_gradients_.empty()) order(side_, main_, join_);
  }

  bool can_use_two_streams() const { return !input_gradients_.empty(); }

 private:
  /// Of the size that keeps activations and gradients near 1, so that no product runs on zeros or infinities.
  static Tensor scaled_weights(const Context& context, std::int64_t out, std::int64_t in, Dtype dtype,
                               std::uint64_t seed) {
    const Tensor noise = random_tensor(context, {out, in}, dtype, seed);
    Tape tape(context, Mode::inference);
    return scale(tape.input(noise), 1 / std::sqrt(static_cast<double>(in))).value();
  }

  cudaStream_t main_;
  cudaStream_t side_;
  Event fork_;
  Event join_;
  ProductLibrary library_;
  std::vector<PlainProduct> forward_;
  std::vector<PlainProduct> weight_gradients_;  // last layer first
  std::vector<PlainProduct> input_gradients_;
};

void run(std::string_view name, std::int64_t batch, const std::vector<std::int64_t>& widths, std::string_view policy,
         bool training, TimingOptions timing) {
  const Stream main;
  const Stream side;
  const Context context = context_for("gpu", policy, {.stream = main.value});
  const Products products(context, main.value, side.value, batch, widths, policy, training);
  context.synchronize();
  std::vector<std::unique_ptr<CapturedGraph>> graphs;
  for (int streams = 1; streams <= (products.can_use_two_streams() ? 2 : 1); ++streams) {
    graphs.push_back(std::make_unique<CapturedGraph>(main.value, [&] { products.run(streams); }));
  }
  std::vector<std::vector<double>> times(graphs.size());
  timing.repeats = std::max(1, timing.repeats / kTurns);
  for (int turn = 0; turn < kTurns; ++turn) {
    for (std::size_t i = 0; i < graphs.size(); ++i) {
      const auto launch = [&] { graphs[i]->launch(); };
      times[i].push_back(time_step(context, launch, Pace::back_to_back, timing).us);
    }
    timing.warm_up_seconds = 0;
  }
  const double one = median(times.front());
  const double two = times.size() == 2 ? median(times.back()) : one;
  nlohmann::ordered_json line{{"workload", name},
                              {"peer", "products only"},
                              {"mode", "graph"},
                              {"policy", policy},
                              {"device", "gpu"},
                              {"us", rounded(std::min(one, two))},
                              {"peak_mib", nullptr},
                              {"streams", two < one ? 2 : 1},
                              {"us_one_stream", rounded(one)}};
  if (times.size() == 2) line["us_two_streams"] = rounded(two);
  fmt::print("{}\n", line.dump());
  std::fflush(stdout);
}

void run_selected(const std::vector<std::string>& names, const TimingOptions& timing) {
  Context::cuda();  // says it best where there is no GPU
  std::vector<std::string> training;
  std::vector<std::string> inference;
  for (const std::string& name : names) {
    const bool step =
        std::ranges::find(training_workloads(), name, &TrainingWorkload::name) != training_workloads().end();
    (step ? training : inference).push_back(name);
  }
  if (names.empty() || !training.empty()) {
    for (const TrainingWorkload& workload : select(training_workloads(), training, "gpu")) {
      run(workload.name, workload.batch, workload.widths, workload.policy, true, timing);
    }
  }
  if (names.empty() || !inference.empty()) {
    for (const InferenceWorkload& workload : select(inference_workloads(), inference, "gpu")) {
      run(workload.name, rows_of(workload), workload.widths, "bf16", false, timing);
    }
  }
}

}  // namespace
}  // namespace fusegrad::bench

int main(int argc, char** argv) {
  std::vector<std::string> names;
  fusegrad::bench::TimingOptions timing;
  CLI::App app("Times the plain matrix products of the workloads. Needs a GPU.");
  app.add_option("--workloads", names, "names, separated by commas (default: all of a GPU)")->delimiter(',');
  app.add_option("--repeats", timing.repeats, "timed blocks of launches")->check(CLI::PositiveNumber);
  app.add_option("--warm-up", timing.warm_up_seconds, "seconds of load before each workload is timed")
      ->check(CLI::Range(0.0, 60.0));
  CLI11_PARSE(app, argc, argv);
  try {
    fusegrad::bench::run_selected(names, timing);
  } catch (const fusegrad::DeviceError& error) {
    fmt::print(stderr, "products_only: needs a GPU: {}\n", error.what());
    return 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "products_only: {}\n", error.what());
    return 1;
  }
  return 0;
}
