// What only a GPU has: streams, events, page-locked memory, and errors that arrive late.
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/device.h"

#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/device.h>
#include <fusegrad/autograd/cuda/pinned_memory.h>
#include <fusegrad/autograd/cuda/stream.h>
#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/tensor.h>

namespace fusegrad::test {
namespace {

using testing::Each;
using testing::HasSubstr;

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override { skip_without(DeviceType::cuda); }
};

TEST_F(CudaDeviceTest, RunsOnABorrowedStream) {
  const detail::DeviceScope scope(0);
  const detail::Stream stream;
  {
    const Context context = Context::cuda({.threads = 1, .stream = stream.get()});
    EXPECT_EQ(context.state().cuda()->stream(), stream.get());
    EXPECT_THAT(Tensor::full(context, {1000}, Dtype::f32, 3).to_vector<float>(), Each(3.0f));
  }
  stream.synchronize();  // the context is gone, the stream is not
}

TEST_F(CudaDeviceTest, KeepsContextsApart) {
  const Context first = Context::cuda({.threads = 1});
  const Context second = Context::cuda({.threads = 1});
  EXPECT_NE(first.state().cuda()->stream(), second.state().cuda()->stream());
  const std::int64_t before[] = {first.memory().in_use, second.memory().in_use};
  const Tensor tensor = Tensor::full(first, {10}, Dtype::f32, 1);
  EXPECT_GT(first.memory().in_use, before[0]);
  EXPECT_EQ(second.memory().in_use, before[1]);
}

TEST_F(CudaDeviceTest, TensorsKeepTheirContextAlive) {
  Tensor tensor;
  {
    const Context context = Context::cuda({.threads = 1});
    tensor = Tensor::full(context, {10}, Dtype::f32, 5);
  }
  EXPECT_THAT(tensor.to_vector<float>(), Each(5.0f));
}

TEST_F(CudaDeviceTest, ScratchIsReusedInStreamOrder) {
  const Context context = Context::cuda({.threads = 1});
  detail::CudaState& cuda = *context.state().cuda();
  const void* first = nullptr;
  {
    const detail::Scratch scratch = cuda.scratch(5000);
    first = scratch.data();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 256, 0u);
    const detail::Scratch other = cuda.scratch(5000);
    EXPECT_NE(other.data(), first) << "two scratch blocks at a time are two";
  }
  const std::int64_t allocations = context.memory().system_allocations;
  const detail::Scratch third = cuda.scratch(5000);
  const detail::Scratch fourth = cuda.scratch(5000);
  EXPECT_EQ(context.memory().system_allocations, allocations);
  EXPECT_TRUE(third.data() == first || fourth.data() == first);
}

TEST_F(CudaDeviceTest, CopiesFromPageLockedMemory) {
  const Context context = Context::cuda({.threads = 1});
  detail::PinnedMemory pinned(4000 * sizeof(float));
  detail::PinnedMemory moved = std::move(pinned);
  EXPECT_EQ(moved.bytes(), 16000u);
  const std::span<float> values(reinterpret_cast<float*>(moved.data()), 4000);
  std::iota(values.begin(), values.end(), 1.0f);
  const Tensor tensor = Tensor::from(context, {4000}, std::span<const float>(values));
  std::fill(values.begin(), values.end(), 0.0f);  // the copy has been made
  const std::vector<float> back = tensor.to_vector<float>();
  for (std::size_t i = 0; i < back.size(); ++i) ASSERT_EQ(back[i], static_cast<float>(i + 1));
}

TEST_F(CudaDeviceTest, EventsOrderStreams) {
  const detail::DeviceScope scope(0);
  const detail::Stream first;
  const detail::Stream second;
  detail::Event event;
  event.record(first.get());
  event.make_wait(second.get());
  event.synchronize();
  second.synchronize();
  EXPECT_FALSE(first.capturing());
  EXPECT_EQ(first.device(), 0);
}

TEST_F(CudaDeviceTest, NamesWhatCannotBeReadOnTheHost) {
  const Tensor tensor = Tensor::zeros(Context::cuda({.threads = 1}), {2}, Dtype::f32);
  try {
    tensor.data<float>();
    FAIL() << "device memory was handed out";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cuda:0"));
  }
}

class CudaErrorDeathTest : public CudaDeviceTest {
 protected:
  void SetUp() override {
    CudaDeviceTest::SetUp();
    testing::FLAGS_gtest_death_test_style = "threadsafe";  // the child has a driver of its own
  }
};

/// Reads memory that is not there, and says what the library makes of it. The context and its tensors are destroyed
/// after the error: 7 means that this was quiet.
[[noreturn]] void read_address_that_is_not_there() {
  try {
    const Context context = Context::cuda({.threads = 1});
    const Tensor bad = Tensor::borrow(context, {1024}, reinterpret_cast<float*>(0x1000));
    const Tensor converted = bad.to(Dtype::f64);
    context.synchronize();
  } catch (const CudaError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(7);
  }
  std::_Exit(0);
}

TEST_F(CudaErrorDeathTest, ReportsAnErrorOfAnEarlierKernelAndThatItIsFinal) {
  EXPECT_EXIT(
      read_address_that_is_not_there(), testing::ExitedWithCode(7),
      "cudaStreamSynchronize.*failed with cudaErrorIllegalAddress.* at .*autograd/cuda/.*earlier kernel.*restart");
}

}  // namespace
}  // namespace fusegrad::test
