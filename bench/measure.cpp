#include "bench/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <fusegrad/autograd/random.h>

namespace fusegrad::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kBlockElements = std::int64_t{1} << 20;
constexpr int kFirstSteps = 5;
constexpr double kBlockSeconds = 0.02;  // so long that one wait in it, of some 10 us, does not count
constexpr double kMostStepsOfABlock = 256;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<float> noise(std::int64_t count, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto words = philox({static_cast<std::uint32_t>(i), 0, static_cast<std::uint32_t>(seed), 0}, {1, 0});
    float sum = 0;
    for (const std::uint32_t word : words) sum += static_cast<float>(word >> 8) * 0x1p-24f;
    values[i] = (sum - 2.0f) * std::sqrt(3.0f);
  }
  return values;
}

}  // namespace

Tensor random_tensor(const Context& context, const Shape& shape, Dtype dtype, std::uint64_t seed) {
  const std::int64_t block = std::min(shape.size(), kBlockElements);
  const Tensor values = Tensor::from(context, {block}, noise(block, seed)).to(dtype);
  const Tensor all = Tensor::empty(context, shape, dtype);
  const Tensor flat = all.reshape({shape.size()});
  for (std::int64_t begin = 0; begin < shape.size(); begin += block) {
    const std::int64_t end = std::min(begin + block, shape.size());
    flat.rows(begin, end).copy_from(values.rows(0, end - begin));
  }
  return all;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double rounded(double value, int digits) {
  const double unit = std::pow(10.0, digits);
  return std::round(value * unit) / unit;
}

Timing time_step(const Context& context, const std::function<void()>& step, Pace pace, const TimingOptions& options) {
  Timing timing;
  const auto block_of = [&](int steps) {
    const auto start = Clock::now();
    for (int i = 0; i < steps; ++i) step();
    context.synchronize();
    return seconds_since(start) / steps;
  };
  const auto start = Clock::now();
  block_of(kFirstSteps);
  timing.first_steps_s = seconds_since(start);
  double estimate = block_of(1);
  if (pace == Pace::back_to_back) {
    // One step from rest says too much of what is quick: a first block corrects it.
    for (int i = 0; i < 2; ++i) {
      timing.steps_per_wait =
          static_cast<int>(std::clamp(std::ceil(kBlockSeconds / estimate), 1.0, kMostStepsOfABlock));
      estimate = block_of(timing.steps_per_wait);
    }
  }
  while (seconds_since(start) < options.warm_up_seconds) block_of(timing.steps_per_wait);
  std::vector<double> times;
  for (int i = 0; i < options.repeats; ++i) times.push_back(block_of(timing.steps_per_wait) * 1e6);
  timing.us = median(times);
  return timing;
}

Context context_for(std::string_view device, std::string_view policy, ContextOptions options) {
  options.math = policy == "tf32" ? MathMode::tf32 : MathMode::fp32;
  return device == "gpu" ? Context::cuda(options) : Context::cpu(options);
}

Dtype storage_dtype(std::string_view policy) { return policy == "bf16" ? Dtype::bf16 : Dtype::f32; }

double peak_mib(const Context& context) {
  const MemoryUse use = context.memory();
  return rounded(static_cast<double>(use.peak_in_use + use.workspace) / (1 << 20));
}

std::string peer_name(const Context& context, std::string_view mode) {
  std::string name = "fusegrad";
  if (context.fusion() == Fusion::off) {
    name += " unfused";
  } else if (context.plan_policy() == PlanPolicy::measure) {
    name += " measured";
  }
  return mode == "graph" ? name + " + graph" : name;
}

}  // namespace fusegrad::bench
