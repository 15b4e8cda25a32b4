// What the benchmark programs share: random operands, and how a step is timed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/tensor.h>

namespace fusegrad::bench {

/// Roughly normal values: sums of four uniform ones, a block of at most 2^20 of them again and again. Never zeros,
/// which multiply faster than real data. Another `seed` gives other values.
Tensor random_tensor(const Context& context, const Shape& shape, Dtype dtype, std::uint64_t seed);

double median(std::vector<double> values);

/// Rounded to `digits` after the point, for output.
double rounded(double value, int digits = 1);

/// How steps follow one another while they are timed.
///   single        one, and a wait for the device, again and again: what a step takes that nothing overlaps with
///   back_to_back  blocks of as many as take about 20 ms, with one wait at the end of a block: what a training loop of
///                 captured steps takes, which has nothing to wait for
enum class Pace : std::uint8_t { single, back_to_back };

struct TimingOptions {
  int repeats = 40;              ///< timed steps, or blocks of steps
  double warm_up_seconds = 0.5;  ///< at least, and at least five steps; a cold card is faster, a cold CPU slower
};

struct Timing {
  double us = 0;             ///< median microseconds of a step
  int steps_per_wait = 1;    ///< 1, or the steps of a block
  double first_steps_s = 0;  ///< seconds of the first five steps: choices, captures and all
};

/// Times `step`, which enqueues its work on the context. Errors: whatever it throws.
Timing time_step(const Context& context, const std::function<void()>& step, Pace pace, const TimingOptions& options);

/// A context for one of the policies "fp32", "tf32" and "bf16" on "cpu" or "gpu"; `options` has the rest.
Context context_for(std::string_view device, std::string_view policy, ContextOptions options);

/// What tensors of that policy hold.
Dtype storage_dtype(std::string_view policy);

/// Peak bytes in use by the context so far, in MiB.
double peak_mib(const Context& context);

/// "fusegrad", "fusegrad measured" or "fusegrad unfused", and " + graph" for captured steps: a column of the tables.
std::string peer_name(const Context& context, std::string_view mode);

}  // namespace fusegrad::bench
