#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <fusegrad/autograd/cpu/thread_pool.h>

namespace fusegrad::detail {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {
 protected:
  ThreadPool pool_{GetParam()};
};

TEST_P(ThreadPoolTest, CountsTheCaller) { EXPECT_EQ(pool_.threads(), GetParam()); }

TEST_P(ThreadPoolTest, RunsEveryTaskOnce) {
  for (const std::int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<int> runs(static_cast<std::size_t>(count), 0);
    pool_.run(count, [&](std::int64_t i, int) { ++runs[static_cast<std::size_t>(i)]; });
    for (const int times : runs) ASSERT_EQ(times, 1) << "of " << count;
  }
}

TEST_P(ThreadPoolTest, FinishesAllTasksBeforeItReturns) {
  // Plain memory, written by the workers and read by the caller: the sanitizer sees if the return orders nothing.
  std::vector<std::int64_t> values(257);
  for (std::int64_t round = 0; round < 300; ++round) {
    pool_.run(257, [&](std::int64_t i, int) { values[static_cast<std::size_t>(i)] = round + i; });
    for (std::int64_t i = 0; i < 257; ++i) ASSERT_EQ(values[static_cast<std::size_t>(i)], round + i);
  }
}

TEST_P(ThreadPoolTest, GivesTasksThatRunTogetherDifferentWorkers) {
  std::vector<std::atomic<int>> busy(static_cast<std::size_t>(pool_.threads()));
  std::atomic<bool> clash = false;
  pool_.run(500, [&](std::int64_t, int worker) {
    if (worker < 0 || worker >= pool_.threads() || busy[static_cast<std::size_t>(worker)]++ != 0) clash = true;
    std::this_thread::yield();
    --busy[static_cast<std::size_t>(worker)];
  });
  EXPECT_FALSE(clash);
}

TEST_P(ThreadPoolTest, UsesAllItsThreads) {
  // Each task waits for all others, so that they can only end if each has a thread.
  std::atomic<int> arrived = 0;
  pool_.run(pool_.threads(), [&](std::int64_t, int) {
    ++arrived;
    while (arrived < pool_.threads()) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, pool_.threads());
}

TEST_P(ThreadPoolTest, RethrowsTheErrorOfATaskAndStaysUsable) {
  for (int round = 0; round < 100; ++round) {
    EXPECT_THROW(pool_.run(64,
                           [&](std::int64_t i, int) {
                             if (i == round % 64) throw std::runtime_error("task");
                           }),
                 std::runtime_error);
    std::atomic<int> runs = 0;
    pool_.run(64, [&](std::int64_t, int) { ++runs; });
    ASSERT_EQ(runs, 64);
  }
}

TEST_P(ThreadPoolTest, GivesEachWorkerAlignedMemoryOfItsOwn) {
  constexpr std::size_t kBytes = 1000;
  std::atomic<bool> wrong = false;
  pool_.run(200, [&](std::int64_t i, int worker) {
    auto* memory = static_cast<unsigned char*>(pool_.scratch(worker, kBytes));
    if (reinterpret_cast<std::uintptr_t>(memory) % 64 != 0) wrong = true;
    std::memset(memory, static_cast<int>(i), kBytes);
    std::this_thread::yield();
    for (std::size_t k = 0; k < kBytes; ++k) {
      if (memory[k] != static_cast<unsigned char>(i)) wrong = true;
    }
  });
  EXPECT_FALSE(wrong);
}

TEST_P(ThreadPoolTest, SharesOneBlockAmongTheTasksOfAKernel) {
  auto* shared = static_cast<std::int64_t*>(pool_.shared_scratch(100 * sizeof(std::int64_t)));
  pool_.run(100, [&](std::int64_t i, int worker) {
    static_cast<std::int64_t*>(pool_.scratch(worker, sizeof(std::int64_t)))[0] = -1;
    shared[i] = i;
  });
  for (std::int64_t i = 0; i < 100; ++i) ASSERT_EQ(shared[i], i);
}

TEST_P(ThreadPoolTest, StartsAndStopsAnyNumberOfTimes) {
  for (int round = 0; round < 200; ++round) {
    ThreadPool pool(GetParam());
    std::atomic<int> runs = 0;
    if (round % 2 == 0) pool.run(10, [&](std::int64_t, int) { ++runs; });
    ASSERT_EQ(runs, round % 2 == 0 ? 10 : 0);
  }
}

TEST_P(ThreadPoolTest, MayBeHandedToAnotherThread) {
  std::int64_t sum = 0;
  for (int round = 0; round < 20; ++round) {
    std::thread caller([&] {
      std::atomic<std::int64_t> part = 0;
      pool_.run(100, [&](std::int64_t i, int) { part += i; });
      sum += part;
    });
    caller.join();
  }
  EXPECT_EQ(sum, 20 * 4950);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 8),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace fusegrad::detail
