// Memory in steady state, and what is left when it runs out.
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/autograd/tape_fixture.h"
#include "tests/support/allocations.h"

#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/cpu/host_memory.h>
#include <fusegrad/autograd/error.h>
#include <fusegrad/ops/arithmetic.h>
#include <fusegrad/ops/mse_loss.h>
#include <fusegrad/ops/reduction.h>
#include <fusegrad/ops/reshape.h>
#include <fusegrad/ops/softmax_cross_entropy.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FUSEGRAD_SANITIZED 1
#endif

namespace fusegrad {
namespace {

/// The CPU, with a limit on the number of blocks, and blocks that hold NaN.
class TestMemory final : public detail::Backend {
 public:
  /// Blocks that may still be allocated; negative: any number.
  std::int64_t blocks_left = -1;
  bool poison = false;

  Device device() const override { return cpu_->device(); }
  void* allocate(std::size_t bytes) override {
    if (blocks_left == 0) return nullptr;
    if (blocks_left > 0) --blocks_left;
    void* block = cpu_->allocate(bytes);
    if (block && poison) std::memset(block, 0xff, bytes);
    return block;
  }
  void release(void* block) override { cpu_->release(block); }
  void copy_from_host(void* to, const void* from, std::size_t bytes) override { cpu_->copy_from_host(to, from, bytes); }
  void copy_to_host(void* to, const void* from, std::size_t bytes) override { cpu_->copy_to_host(to, from, bytes); }
  void copy_within(void* to, const void* from, std::size_t bytes) override { cpu_->copy_within(to, from, bytes); }
  void fill(void* block, const void* element, std::size_t element_bytes, std::size_t count) override {
    cpu_->fill(block, element, element_bytes, count);
  }
  void convert(void* to, Dtype to_dtype, const void* from, Dtype from_dtype, std::size_t count) override {
    cpu_->convert(to, to_dtype, from, from_dtype, count);
  }
  void synchronize() override { cpu_->synchronize(); }

 private:
  std::unique_ptr<detail::Backend> cpu_ = detail::make_cpu_backend();
};

/// A context on `TestMemory`, and a small network's worth of tensors.
class Workplace {
 public:
  explicit Workplace(const Context& context) : Workplace(context, nullptr) {}
  static Workplace on_test_memory() {
    auto memory = std::make_unique<TestMemory>();
    TestMemory* handle = memory.get();
    const detail::ContextSettings settings{.threads = 2};
    return {Context(std::make_shared<detail::ContextState>(std::move(memory), settings)), handle};
  }

  /// Forward and backward of a function with fan-out, aliases and every kind of op. The gradient stays in p.
  double step() const {
    Tape tape(context);
    const Var w = tape.parameter(p);
    const Var x = tape.variable(input);
    const Var h = mul(w, x) + reshape(scale(x, 0.5), input.shape());
    const Var loss = softmax_cross_entropy(h + w, labels, {.label_smoothing = 0.1}) + mse_loss(h, input) + mean(h * h);
    tape.retain_gradient(h);
    tape.backward(loss);
    return loss.item();
  }

  Context context;
  TestMemory* memory = nullptr;
  ParameterSet set{context};
  Parameter p;
  Tensor input;
  Tensor labels;

 private:
  Workplace(const Context& where, TestMemory* backend) : context(where), memory(backend) {
    p = set.add("p", {3, 4}, [](std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.1f * static_cast<float>(i) - 0.5f;
    });
    p.value();
    std::vector<float> values(12);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.3f * static_cast<float>(i % 5) - 0.7f;
    input = Tensor::from(context, {3, 4}, values);
    labels = Tensor::from(context, {3}, {0, 3, 1});
  }
};

TEST(MemoryTest, ANewTapeAStepAllocatesNothing) {
  for (const int threads : {1, 2}) {
    const Workplace work(Context::cpu({.threads = threads}));
    for (int i = 0; i < 3; ++i) work.step();
    const std::int64_t blocks = work.context.memory().system_allocations;
    const std::int64_t in_use = work.context.memory().in_use;
    const std::int64_t allocations = test::allocations();
    for (int i = 0; i < 50; ++i) work.step();
    EXPECT_EQ(test::allocations(), allocations);
    EXPECT_EQ(work.context.memory().system_allocations, blocks);
    EXPECT_EQ(work.context.memory().in_use, in_use);
  }
}

TEST(MemoryTest, ATapeThatIsResetAllocatesNothing) {
  const Context context = Context::cpu({.threads = 1});
  const Tensor input = Tensor::full(context, {100}, Dtype::f32, 2);
  Tape tape(context);
  const auto step = [&] {
    const Var x = tape.variable(input);
    tape.backward(sum(mul(x, x)));
    tape.reset();
  };
  for (int i = 0; i < 3; ++i) step();
  const std::int64_t in_use = context.memory().in_use;
  const std::int64_t peak = context.memory().peak_in_use;
  const std::int64_t allocations = test::allocations();
  for (int i = 0; i < 1000; ++i) step();
  EXPECT_EQ(test::allocations(), allocations);
  EXPECT_EQ(context.memory().in_use, in_use);
  EXPECT_EQ(context.memory().peak_in_use, peak);
}

TEST(MemoryTest, TenThousandInferencesKeepMemoryFlat) {
  const Context context = Context::cpu({.threads = 1});
  const Tensor input = Tensor::full(context, {64}, Dtype::f32, 2);
  Tape tape(context, Mode::inference);
  double last = 0;
  const auto run = [&] {
    const Var x = tape.input(input);
    last = sum(mul(x, x) + scale(x, 3)).item();
  };
  for (int i = 0; i < 10; ++i) run();
  const MemoryUse before = context.memory();
  const std::int64_t allocations = test::allocations();
  for (int i = 0; i < 10000; ++i) run();
  EXPECT_EQ(context.memory().in_use, before.in_use);
  EXPECT_EQ(context.memory().peak_in_use, before.peak_in_use);
  EXPECT_EQ(context.memory().system_allocations, before.system_allocations);
  EXPECT_EQ(test::allocations(), allocations);
  EXPECT_EQ(last, 640);
}

TEST(MemoryTest, ValuesThatNothingNeedsAreFreedAtOnce) {
  const Context context = Context::cpu({.threads = 1});
  const Tensor input = Tensor::zeros(context, {1 << 16}, Dtype::f32);
  const std::int64_t one = input.bytes();
  const std::int64_t before = context.memory().in_use;
  Tape tape(context);
  Var y = tape.variable(input);
  for (int i = 0; i < 20; ++i) y = scale(y, 2);  // saves nothing
  EXPECT_EQ(context.memory().in_use - before, one) << "only the last value";
  EXPECT_LE(context.memory().peak_in_use - before, 2 * one);
  tape.backward(y, Tensor::zeros(context, {1 << 16}, Dtype::f32));
  EXPECT_LE(context.memory().peak_in_use - before, 4 * one) << "y, the seed and two gradients";
}

TEST(MemoryTest, MemoryThatHoldsNanGivesTheSameBits) {
  const Workplace plain(Context::cpu({.threads = 2}));
  Workplace poisoned = Workplace::on_test_memory();
  poisoned.memory->poison = true;
  for (int i = 0; i < 3; ++i) {
    poisoned.context.release_cached_memory();  // so that every block is new, and poisoned
    EXPECT_EQ(poisoned.step(), plain.step());
    EXPECT_EQ(poisoned.p.gradient().to_vector<float>(), plain.p.gradient().to_vector<float>());
  }
}

TEST(MemoryTest, AnImpossibleSizeLeavesTheContextUsable) {
  const Workplace work(Context::cpu({.threads = 1}));
  const double before = work.step();
  const std::int64_t in_use = work.context.memory().in_use;
  EXPECT_THROW(Tensor::empty(work.context, {std::int64_t{1} << 59}, Dtype::f64), OutOfMemoryError);
  EXPECT_THROW(Tensor::empty(work.context, {std::numeric_limits<std::int64_t>::max()}, Dtype::u8), OutOfMemoryError);
  EXPECT_THROW(Tensor::empty(work.context, {std::numeric_limits<std::int64_t>::max()}, Dtype::f32), ShapeError);
#ifndef FUSEGRAD_SANITIZED  // a sanitizer ends the program instead
  EXPECT_THAT([&] { Tensor::empty(work.context, {std::int64_t{1} << 50}, Dtype::f32); },
              testing::ThrowsMessage<OutOfMemoryError>(testing::HasSubstr("4503599627370496 bytes were asked for")));
#endif
  EXPECT_EQ(work.context.memory().in_use, in_use);
  work.p.clear_gradient();
  EXPECT_EQ(work.step(), before);
}

TEST(MemoryTest, RunningOutAnywhereInAStepIsAnErrorThatTheNextStepDoesNotNotice) {
  const Workplace undisturbed(Context::cpu({.threads = 2}));
  const double loss = undisturbed.step();
  const std::vector<float> gradient = undisturbed.p.gradient().to_vector<float>();
  int failures = 0;
  for (std::int64_t blocks = 0;; ++blocks) {
    Workplace work = Workplace::on_test_memory();
    const std::int64_t in_use = work.context.memory().in_use;
    work.memory->blocks_left = blocks;
    bool failed = false;
    try {
      work.step();
    } catch (const OutOfMemoryError&) {
      failed = true;
    }
    if (!failed) break;
    ++failures;
    EXPECT_FALSE(work.p.has_gradient()) << "no half gradients, at block " << blocks;
    EXPECT_EQ(work.context.memory().in_use, in_use) << "nothing is lost, at block " << blocks;
    work.memory->blocks_left = -1;
    EXPECT_EQ(work.step(), loss);
    EXPECT_EQ(work.p.gradient().to_vector<float>(), gradient);
  }
  EXPECT_GT(failures, 5);
}

}  // namespace
}  // namespace fusegrad
