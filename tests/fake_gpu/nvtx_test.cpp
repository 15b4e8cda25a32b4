// The NVTX ranges of a step. This program is its own profiler: it hands NVTX the functions that a tool would, which
// keep the ranges that are opened and count how many are open.
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <nvtx3/nvToolsExt.h>

#include "tests/support/allocations.h"
#include "tests/support/device.h"

#include <fusegrad/autograd/op.h>
#include <fusegrad/fusegrad.h>

namespace {

struct Ranges {
  std::string domain;
  bool keep = false;
  std::vector<std::string> texts = {};
  int open = 0;
  int deepest = 0;
};

Ranges& ranges() {
  static Ranges all;
  return all;
}

nvtxDomainHandle_t create_domain(const char* name) {
  ranges().domain = name;
  return reinterpret_cast<nvtxDomainHandle_t>(&ranges());
}

int push(nvtxDomainHandle_t, const nvtxEventAttributes_t* attributes) {
  Ranges& all = ranges();
  all.deepest = std::max(all.deepest, ++all.open);
  if (all.keep) all.texts.emplace_back(attributes->message.ascii);
  return all.open - 1;
}

int pop(nvtxDomainHandle_t) { return --ranges().open; }

int attach(NvtxGetExportTableFunc_t table_of) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create_domain);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  return 1;
}

/// Before the first context: NVTX looks for a tool once.
const bool attached = (InitializeInjectionNvtx2_fnptr = attach, true);

}  // namespace

namespace fusegrad {
namespace {

using testing::ElementsAre;

/// Runs on the CPU too: the ranges are there wherever the GPU backend was built.
class NvtxTest : public test::DeviceTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(attached);
    DeviceTest::SetUp();
    ranges() = {.domain = ranges().domain};
  }

  /// One step of training.
  void step() {
    if (!net_) {
      net_.emplace(context(), MlpOptions{.widths = {8, 16, 4}, .seed = 1});
      optimizer_.emplace(net_->parameters(), AdamWOptions{});
      x_ = Tensor::full(context(), {32, 8}, Dtype::f32, 1);
      target_ = Tensor::zeros(context(), {32, 4}, Dtype::f32);
    }
    Tape tape(context());
    tape.backward(mse_loss((*net_)(tape.input(x_)), target_));
    optimizer_->step();
  }

 private:
  std::optional<Mlp> net_;
  std::optional<AdamW> optimizer_;
  Tensor x_;
  Tensor target_;
};
INSTANTIATE_TEST_SUITE_P(Each, NvtxTest, test::kDevices, test::device_name);

TEST_P(NvtxTest, AStepHasARangeForEachOpNodeAndOptimizerStep) {
  ranges().keep = true;
  step();
  EXPECT_EQ(ranges().domain, "fusegrad");
  EXPECT_THAT(ranges().texts, ElementsAre("linear", "linear", "mse_loss", "mse_loss backward", "linear backward",
                                          "linear backward", "adamw step"));
  EXPECT_EQ(ranges().open, 0);
  EXPECT_EQ(ranges().deepest, 1);
}

TEST_P(NvtxTest, AllocatesNothingUnderAProfiler) {
  for (int i = 0; i < 3; ++i) step();
  const std::int64_t before = test::allocations();
  for (int i = 0; i < 3; ++i) step();
  EXPECT_EQ(test::allocations() - before, 0);
  EXPECT_EQ(ranges().deepest, 1) << "there was a profiler";
}

TEST_P(NvtxTest, RangesEndWhereAnErrorLeaves) {
  class FaultyRule final : public Rule {
   public:
    void backward(Backward&) override { throw std::runtime_error("faulty"); }
  };
  Tape tape(context());
  const Var x = tape.variable(Tensor::full(context(), {}, Dtype::f32, 1));
  const std::string longest(200, 'x');
  const Var y = Recording(longest, {x}).finish<FaultyRule>(x.value());
  ranges().keep = true;
  EXPECT_THROW(tape.backward(y), std::runtime_error);
  EXPECT_THAT(ranges().texts, ElementsAre(std::string(48, 'x') + " backward"));
  EXPECT_EQ(ranges().open, 0);
  EXPECT_THROW(linear(x, x), Error);
  EXPECT_EQ(ranges().open, 0);
}

TEST_P(NvtxTest, ACallOfAStepIsARangeAroundItsOps) {
  Step step(context(), [&](Tape& tape) { return sum(tape.variable(Tensor::full(context(), {4}, Dtype::f32, 1))); });
  ranges().keep = true;
  step();
  const bool on_gpu = GetParam() == DeviceType::cuda;
  EXPECT_THAT(ranges().texts, ElementsAre(on_gpu ? "step (first run)" : "step", "sum"));
  EXPECT_EQ(ranges().deepest, 2);
  EXPECT_EQ(ranges().open, 0);
}

}  // namespace
}  // namespace fusegrad
