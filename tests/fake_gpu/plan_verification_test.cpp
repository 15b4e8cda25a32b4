// What no real library offers on demand: an algorithm that runs and gives wrong results, in a plan file.
#include <bit>
#include <vector>

#include <gmock/gmock.h>

#include "tests/io/temporary_directory.h"

#include <fusegrad/fusegrad.h>
#include <fusegrad/ops/plan_file.h>

namespace fusegrad {
namespace {

using detail::PlanRecord;
using detail::PlanSubject;

constexpr std::uint64_t kWrong = 3;  // blaslt.cpp

std::vector<float> step(const Context& context) {
  ParameterSet set(context, Dtype::f32);
  const auto ones = [](std::span<float> out) { std::ranges::fill(out, 1.0f); };
  const Parameter w = set.add("w", {8, 16}, ones);
  const Parameter b = set.add("b", {8}, ones);
  Tape tape(context);
  const Var x = tape.input(Tensor::full(context, {32, 16}, Dtype::f32, 2));
  tape.backward(sum(linear(x, tape.parameter(w), tape.parameter(b), {.activation = Activation::relu})));
  return w.gradient().to_vector<float>();
}

TEST(CudaPlanVerificationTest, AFilesWrongAlgorithmIsRejectedAtItsFirstUse) {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "plans.json";
  const Context first = Context::cuda({.plans = PlanPolicy::measure});
  const std::vector<float> expected = step(first);
  EXPECT_EQ(expected, std::vector<float>(8 * 16, 64));
  save_plans(first, path);
  detail::ParsedPlanFile parsed = detail::parse_plan_file(test::read_file(path));
  ASSERT_EQ(parsed.problem, "");
  int products = 0;
  for (PlanRecord& record : parsed.file.sections.front().records) {
    if (record.subject != PlanSubject::product) continue;
    record.algorithm[3] = kWrong;  // behind six alignments of 32 bits
    ++products;
  }
  directory.write("plans.json", detail::format_plan_file(parsed.file));

  const Context second = Context::cuda({.plans = PlanPolicy::measure});
  EXPECT_GT(load_plans(second, path).plans, 0);
  EXPECT_EQ(step(second), expected);
  EXPECT_GT(second.counters().rejected_candidates, 0);
  EXPECT_GT(second.counters().plans_measured, 0);
  ASSERT_FALSE(second.warnings().empty());
  EXPECT_THAT(second.warnings().front(), testing::HasSubstr("rejected: the output is wrong"));

  // Who trusts a file gets what is in it.
  const Context trusting = Context::cuda({.plans = PlanPolicy::measure});
  EXPECT_GT(load_plans(trusting, path, {.verify = false}).plans, 0);
  EXPECT_NE(step(trusting), expected);
  // Deterministic contexts verify all the same, but these plans are not for them.
  EXPECT_NE(load_plans(Context::cuda({.deterministic = true}), path).ignored, "");
  EXPECT_GE(products, 2);
}

}  // namespace
}  // namespace fusegrad
