// Times work on a GPU, on a stream of its own. Not installed.
//
// What runs for microseconds on operands that stay in the second-level cache, as a small network's do, is timed as a
// graph of many copies, because an eager launch costs the host more than that. Several ways to do the same are timed in
// turn, round after round, and judged by their medians: clocks drift, and within a run only ratios mean anything.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <fusegrad/autograd/cuda/stream.h>

namespace fusegrad::detail {

class Stopwatch {
 public:
  Stopwatch();
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// Where the calls that are timed enqueue their work.
  const Stream& stream() const { return stream_; }

  /// True if operands of so many bytes are not in the cache when a step comes to use them.
  bool is_cold(std::int64_t bytes) const { return bytes > cache_bytes_ / 4; }

  /// Median microseconds of each of `calls`, `cold` with nothing of theirs in the cache, if there is memory to fill it
  /// with. Every call enqueues the same work on stream() each time, and has run once before. Those that are clearly
  /// slow in a first look get no more rounds; all rounds together take about `budget_us`, but at least one is run.
  /// Errors: CudaError; whatever a call throws.
  std::vector<double> compare(std::span<const std::function<void()>> calls, double budget_us, bool cold);

 private:
  class Lap;

  bool can_flush();
  void flush();
  double time(const std::function<void()>& call);

  Stream stream_;
  CUevent_st* begin_ = nullptr;
  CUevent_st* end_ = nullptr;
  std::int64_t cache_bytes_ = 0;
  void* other_ = nullptr;  // what fills the cache
};

}  // namespace fusegrad::detail
