#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include <fusegrad/autograd/cpu/thread_pool.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fusegrad::detail {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr int kSpins = 2000;  // about 20 µs: a training step issues its next parallel region sooner than that

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

struct AlignedDelete {
  void operator()(void* p) const { ::operator delete (p, std::align_val_t{kAlignment}); }
};

struct alignas(kAlignment) Scratch {
  std::unique_ptr<void, AlignedDelete> memory;
  std::size_t bytes = 0;
};

}  // namespace

class ThreadPool::Impl {
 public:
  explicit Impl(int threads) : scratch_(threads + 1) {
    workers_.reserve(threads - 1);
    try {
      for (int worker = 1; worker < threads; ++worker) workers_.emplace_back([this, worker] { work(worker); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~Impl() { stop(); }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void run(std::int64_t count, void* context, Call call) {
    if (workers_.empty() || count <= 1) {
      for (std::int64_t i = 0; i < count; ++i) call(context, i, 0);
      return;
    }
    count_ = count;
    context_ = context;
    call_ = call;
    next_.store(0, std::memory_order_relaxed);
    running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    {
      const std::lock_guard lock(mutex_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    take_tasks(0);
    for (int spin = 0; running_.load(std::memory_order_acquire) != 0; ++spin) {
      if (spin < kSpins) {
        pause();
      } else {
        std::this_thread::yield();
      }
    }
    if (failed_.load(std::memory_order_relaxed)) {
      failed_.store(false, std::memory_order_relaxed);
      std::rethrow_exception(std::exchange(error_, nullptr));
    }
  }

  void* scratch(int worker, std::size_t bytes) {
    bytes = std::max(bytes, kAlignment);  // never null, so that kernels may take a null pointer for "not wanted"
    Scratch& own = scratch_[worker];
    if (own.bytes < bytes) {
      own.memory.reset();
      own.bytes = 0;
      own.memory.reset(::operator new (bytes, std::align_val_t{kAlignment}));
      own.bytes = bytes;
    }
    return own.memory.get();
  }

 private:
  void take_tasks(int worker) {
    for (;;) {
      const std::int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= count_) return;
      try {
        call_(context_, i, worker);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
        failed_.store(true, std::memory_order_relaxed);
        next_.store(count_, std::memory_order_relaxed);
      }
    }
  }

  void work(int worker) {
    std::uint64_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) pause();
      if (generation_.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
      }
      seen = generation_.load(std::memory_order_acquire);
      if (stopping_.load(std::memory_order_acquire)) return;
      take_tasks(worker);
      running_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  void stop() {
    stopping_.store(true, std::memory_order_release);
    {
      const std::lock_guard lock(mutex_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  std::vector<Scratch> scratch_;  // one a thread, then the shared one
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<bool> stopping_{false};
  alignas(kAlignment) std::atomic<std::int64_t> next_{0};
  alignas(kAlignment) std::atomic<int> running_{0};
  std::int64_t count_ = 0;
  void* context_ = nullptr;
  Call call_ = nullptr;
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>(threads)) {}
ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return impl_->threads(); }
void ThreadPool::run_erased(std::int64_t count, void* context, Call call) { impl_->run(count, context, call); }
void* ThreadPool::scratch(int worker, std::size_t bytes) { return impl_->scratch(worker, bytes); }
void* ThreadPool::shared_scratch(std::size_t bytes) { return impl_->scratch(threads(), bytes); }

}  // namespace fusegrad::detail
