// How kernels cut their work into tasks. Not installed.
#pragma once

#include <cstdint>

#include <fusegrad/autograd/cpu/thread_pool.h>

namespace fusegrad::detail {

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }
constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) { return ceil_div(value, unit) * unit; }

/// Runs task(i, worker) for every i in [0, count), as ThreadPool::run does; on the caller alone if all of it is worth
/// less than about 10 microseconds, what waking a thread may cost. `work` is in multiply-adds of a product.
template <class F>
void run_tasks(ThreadPool& pool, std::int64_t count, std::int64_t work, F&& task) {
  constexpr std::int64_t kWorthWaking = std::int64_t{1} << 19;
  if (work < kWorthWaking) {
    for (std::int64_t i = 0; i < count; ++i) task(i, 0);
  } else {
    pool.run(count, task);
  }
}

}  // namespace fusegrad::detail
