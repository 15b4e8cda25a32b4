// The library's own threads: runs a number of independent tasks on the caller and a fixed set of workers.
//
// Which thread runs a task is not fixed, so a task's result may depend on its number only: kernels cut their work by
// the shape of the problem, never by the number of threads, and that is why results do not depend on it.
// Not installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace fusegrad::detail {

/// A fixed set of threads. One caller at a time; calls do not nest.
class ThreadPool {
 public:
  /// `threads` counts the caller: 1 means no thread is started.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  /// Runs task(i, worker) for every i in [0, count), in any order, and returns when all are done.
  /// `worker` is in [0, threads()); no two tasks that run at the same time have the same one.
  /// If tasks throw, the remaining ones are abandoned and the first exception is rethrown here.
  template <class F>
  void run(std::int64_t count, F&& task) {
    using Task = std::remove_reference_t<F>;
    run_erased(count, const_cast<void*>(static_cast<const void*>(&task)),
               [](void* context, std::int64_t i, int worker) { (*static_cast<Task*>(context))(i, worker); });
  }

  /// Memory of at least `bytes` for `worker`, aligned to 64 bytes, uninitialised, valid until its next call.
  void* scratch(int worker, std::size_t bytes);
  /// As scratch, for the caller of run(): memory that all tasks of one kernel share.
  void* shared_scratch(std::size_t bytes);

 private:
  using Call = void (*)(void*, std::int64_t, int);
  void run_erased(std::int64_t count, void* context, Call call);

  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fusegrad::detail
