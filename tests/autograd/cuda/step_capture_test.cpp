// Calls of the CUDA runtime inside a step function, which fusegrad does not see.
#include <functional>

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include "tests/support/device.h"
#include "tests/support/tensors.h"

#include <fusegrad/fusegrad.h>

namespace fusegrad {
namespace {

using namespace fusegrad::test;

class StepCaptureTest : public testing::Test {
 protected:
  void SetUp() override { skip_without(DeviceType::cuda); }
};

/// Trains a small net by a step whose function also calls `inside`, if it is not empty.
class Training {
 public:
  explicit Training(const Context& context)
      : context_(context),
        net_(context, {.widths = {16, 24, 8}, .seed = 1}),
        optimizer_(net_.parameters(), {.learning_rate = 1e-2}),
        x_(Tensor::full(context, {32, 16}, Dtype::f32, 0.5)),
        target_(Tensor::full(context, {32, 8}, Dtype::f32, 0.25)),
        step_(context, [this](Tape& tape, const Tensor& x, const Tensor& target) {
          const Var loss = mse_loss(net_(tape.input(x)), target);
          if (inside) inside();
          tape.backward(loss);
          optimizer_.step();
          return loss;
        }) {}

  std::function<void()> inside;
  void call() { step_(x_, target_); }
  std::vector<double> values() const { return values_of(net_.parameters()[0].value()); }

 private:
  Context context_;
  Mlp net_;
  Adam optimizer_;
  Tensor x_;
  Tensor target_;
  Step step_;
};

TEST_F(StepCaptureTest, CallsThatCannotBeCapturedAreReportedAndLeaveEverythingUsable) {
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 64), cudaSuccess);
  const std::pair<const char*, std::function<void()>> acts[] = {
      {"device sync", [] { static_cast<void>(cudaDeviceSynchronize()); }},
      {"sync of the legacy stream", [] { static_cast<void>(cudaStreamSynchronize(nullptr)); }},
      {"synchronous copy",
       [&] {
         char host[64] = {};
         static_cast<void>(cudaMemcpy(host, memory, sizeof host, cudaMemcpyDeviceToHost));
       }},
      {"allocation",
       [] {
         void* block = nullptr;
         if (cudaMalloc(&block, 64) == cudaSuccess) static_cast<void>(cudaFree(block));
       }},
      {"page-locked allocation",
       [] {
         void* block = nullptr;
         if (cudaMallocHost(&block, 64) == cudaSuccess) static_cast<void>(cudaFreeHost(block));
       }},
      {"event query", [&] { static_cast<void>(cudaEventQuery(event)); }},
      {"work on the legacy stream", [&] { static_cast<void>(cudaMemsetAsync(memory, 0, 64, nullptr)); }}};
  for (const auto& [name, act] : acts) {
    SCOPED_TRACE(name);
    const Context context = Context::cuda({.plans = PlanPolicy::heuristic});
    Training training(context);
    Training undisturbed(context);
    training.call();
    const std::vector<double> before = training.values();
    training.inside = act;
    bool refused = false;
    try {
      training.call();
    } catch (const StateError& error) {
      refused = true;
      EXPECT_THAT(error.what(), testing::HasSubstr("the capture was invalidated inside the step function"));
      EXPECT_EQ(training.values(), before);
    }
    std::printf("%s: %s\n", name, refused ? "refused" : "not refused");
    training.inside = {};
    while (cudaGetLastError() != cudaSuccess) {
    }
    for (int i = 0; i < 3; ++i) training.call();
    for (int i = 0; i < (refused ? 4 : 5); ++i) undisturbed.call();
    EXPECT_EQ(training.values(), undisturbed.values());
  }
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(StepCaptureTest, RunsOnABorrowedStreamInItsOrder) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  {
    Training borrowed(Context::cuda({.stream = stream, .plans = PlanPolicy::heuristic}));
    Training own(Context::cuda({.plans = PlanPolicy::heuristic}));
    for (int i = 0; i < 6; ++i) {
      borrowed.call();
      own.call();
    }
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(borrowed.values(), own.values());
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(StepCaptureTest, ReportsALabelThatIsNoClass) {
  const Context context = Context::cuda();
  const Mlp net(context, {.widths = {16, 8}, .seed = 1});
  Adam optimizer(net.parameters(), {.learning_rate = 1e-2});
  Step step(context, [&](Tape& tape, const Tensor& x, const Tensor& label) {
    const Var loss = softmax_cross_entropy(net(tape.input(x)), label);
    tape.backward(loss);
    optimizer.step();
    return loss;
  });
  const Tensor x = Tensor::full(context, {4, 16}, Dtype::f32, 0.5);
  // Labels that are made on the GPU are not checked by the host.
  Tensor label = Tensor::zeros(context, {4}, Dtype::i32);
  for (int i = 0; i < 3; ++i) step(x, label);
  const std::vector<double> before = values_of(net.parameters()[0].value());
  label.copy_from(std::vector<std::int32_t>{0, 1, 8, 2});
  step(x, label);
  EXPECT_THROW(context.synchronize(), ValueError);
  EXPECT_EQ(values_of(net.parameters()[0].value()), before);
  EXPECT_EQ(optimizer.steps(net.parameters()[0]), 3);
  label.copy_from(std::vector<std::int32_t>{0, 1, 7, 2});
  step(x, label);
  EXPECT_EQ(optimizer.steps(net.parameters()[0]), 4);
}

}  // namespace
}  // namespace fusegrad
