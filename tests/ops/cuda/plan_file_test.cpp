// Plan files on a GPU: what one context has measured another one uses without measuring, and nothing in a file is
// trusted.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "tests/ops/cuda/plan_file_fixture.h"
#include "tests/support/two_layer_step.h"

#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/fusegrad.h>
#include <fusegrad/ops/cuda/plan_table.h>
#include <fusegrad/ops/plan_file.h>

namespace fusegrad {
namespace {

using detail::PlanFile;
using detail::PlanRecord;
using detail::PlanSubject;
using testing::HasSubstr;
using testing::IsEmpty;

class CudaPlanFileTest : public test::PlanFileFixture {
 protected:
  /// What was chosen, by product or step. Products that differ in alignment only have one name.
  static std::set<std::pair<std::string, std::string>> chosen(const Context& context) {
    std::set<std::pair<std::string, std::string>> names;
    for (const PlanReport& report : plans(context)) {
      names.emplace(report.what, report.candidates.empty() ? "nothing" : report.candidates.front().name);
    }
    return names;
  }

  /// Writes the file anew, after `edit`, with a right checksum.
  void forge(const std::function<void(PlanFile&)>& edit) const {
    detail::ParsedPlanFile parsed = detail::parse_plan_file(test::read_file(path));
    ASSERT_EQ(parsed.problem, "");
    edit(parsed.file);
    directory.write("plans.json", detail::format_plan_file(std::move(parsed.file)));
  }

  void forge_records(const std::function<void(PlanRecord&)>& edit) const {
    forge([&](PlanFile& file) {
      for (auto& section : file.sections) std::ranges::for_each(section.records, edit);
    });
  }
};

TEST_F(CudaPlanFileTest, SavedPlansAreUsedWithoutMeasuring) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::f64}) {
    SCOPED_TRACE(name_of(dtype));
    const Context first = measuring();
    const auto expected = test::two_layer_step(first, dtype);
    ASSERT_GT(first.counters().plans_measured, 0);
    save_plans(first, path);
    for (const bool verify : {true, false}) {
      const Context second = measuring();
      const PlanFileReport report = load_plans(second, path, {.verify = verify});
      EXPECT_EQ(report.ignored, "");
      EXPECT_GT(report.plans, 0);
      std::string text;
      test::expect_equal(test::two_layer_step(second, dtype, {.explained = &text}), expected);
      EXPECT_EQ(second.counters().plans_measured, 0);
      EXPECT_EQ(second.counters().rejected_candidates, 0);
      EXPECT_GT(second.counters().plans_loaded, 0);
      EXPECT_THAT(second.warnings(), IsEmpty());
      EXPECT_THAT(text, HasSubstr("from a plan file"));
      const auto here = chosen(first);
      for (const auto& choice : chosen(second)) EXPECT_TRUE(here.contains(choice)) << choice.first << choice.second;
      for (const PlanReport& plan : plans(second)) {
        EXPECT_EQ(plan.origin, PlanOrigin::file) << plan.what;
        EXPECT_GT(plan.candidates.front().us, 0) << plan.what;
      }
      test::expect_equal(test::two_layer_step(second, dtype), expected);
    }
  }
}

TEST_F(CudaPlanFileTest, ReportsSayHowEachChoiceWasMade) {
  const Context ranked = Context::cuda();
  test::two_layer_step(ranked, Dtype::bf16);
  for (const PlanReport& plan : plans(ranked)) {
    EXPECT_EQ(plan.origin, PlanOrigin::ranked);
    EXPECT_EQ(plan.kind, PlanKind::product);
    ASSERT_EQ(plan.candidates.size(), 1U) << plan.what;
    EXPECT_EQ(plan.candidates.front().us, 0);
  }
  const Context measured = measuring();
  test::two_layer_step(measured, Dtype::bf16);
  int steps = 0;
  for (const PlanReport& plan : plans(measured)) {
    EXPECT_EQ(plan.origin, PlanOrigin::measured) << plan.what;
    ASSERT_FALSE(plan.candidates.empty());
    for (const PlanReport::Candidate& candidate : plan.candidates) EXPECT_GT(candidate.us, 0) << plan.what;
    steps += plan.kind == PlanKind::step;
  }
  EXPECT_GE(steps, 2);
}

TEST_F(CudaPlanFileTest, AContextThatHasRunWithoutMeasurementTakesThemUp) {
  const Context first = measuring();
  const auto expected = test::two_layer_step(first, Dtype::bf16);
  save_plans(first, path);
  const Context second = Context::cuda();
  test::expect_equal(test::two_layer_step(second, Dtype::bf16), expected);
  ASSERT_GT(load_plans(second, path).plans, 0);
  test::expect_equal(test::two_layer_step(second, Dtype::bf16), expected);
  EXPECT_GT(second.counters().plans_loaded, 0);
  EXPECT_EQ(second.counters().plans_measured, 0);
  std::map<std::string, PlanOrigin> origins;
  for (const PlanReport& plan : plans(second)) origins[plan.what] = plan.origin;
  int steps = 0;
  for (const PlanReport& plan : plans(first)) {
    // A way that was only a candidate may have asked for steps that the chosen one does not need.
    if (plan.kind != PlanKind::step || !origins.contains(plan.what)) continue;
    EXPECT_EQ(origins[plan.what], PlanOrigin::file) << plan.what;
    ++steps;
  }
  EXPECT_GE(steps, 1);
  // And it saves what it was given.
  const std::string copy = directory / "copy.json";
  save_plans(second, copy);
  EXPECT_EQ(load_plans(measuring(), copy).plans, load_plans(measuring(), path).plans);
}

TEST_F(CudaPlanFileTest, OwnMeasurementsComeBeforeTheFile) {
  const Context first = measuring();
  const auto expected = test::two_layer_step(first, Dtype::bf16);
  save_plans(first, path);
  forge_records([](PlanRecord& record) {
    if (record.subject == PlanSubject::product) record.algorithm.assign(record.algorithm.size(), 0);
  });
  const auto before = chosen(first);
  load_plans(first, path);
  test::expect_equal(test::two_layer_step(first, Dtype::bf16), expected);
  EXPECT_EQ(chosen(first), before);
  EXPECT_EQ(first.counters().plans_loaded, 0);
}

TEST_F(CudaPlanFileTest, AlgorithmsThatDoNotExistAreRejectedAndChosenAnew) {
  const Context first = measuring();
  const auto expected = test::two_layer_step(first, Dtype::bf16);
  save_plans(first, path);
  forge_records([](PlanRecord& record) {
    if (record.subject == PlanSubject::product) record.algorithm[0] |= 0x7FFF7FFFu;
  });
  for (const bool verify : {true, false}) {
    const Context second = measuring();
    EXPECT_GT(load_plans(second, path, {.verify = verify}).plans, 0);
    test::expect_equal(test::two_layer_step(second, Dtype::bf16), expected);
    EXPECT_GT(second.counters().rejected_candidates, 0);
    EXPECT_GT(second.counters().plans_measured, 0);
    ASSERT_FALSE(second.warnings().empty());
    EXPECT_THAT(second.warnings().front(), HasSubstr("was rejected: cuBLASLt does not offer it"));
    int remarks = 0;
    for (const PlanReport& plan : plans(second)) remarks += plan.remark.find("rejected") != std::string::npos;
    EXPECT_GT(remarks, 0);
  }
}

TEST_F(CudaPlanFileTest, AlgorithmsOfAnyBitsGiveRightNumbers) {
  const Context first = measuring();
  const auto expected = test::two_layer_step(first, Dtype::bf16);
  save_plans(first, path);
  const std::string whole = test::read_file(path);
  for (const std::uint64_t bits : {std::uint64_t{0}, ~std::uint64_t{0}, std::uint64_t{0x0001000100010001}}) {
    directory.write("plans.json", whole);
    forge_records([&](PlanRecord& record) { std::ranges::fill(record.algorithm, bits); });
    const Context second = measuring();
    EXPECT_GT(load_plans(second, path).plans, 0);
    test::expect_equal(test::two_layer_step(second, Dtype::bf16), expected);
  }
}

TEST_F(CudaPlanFileTest, AlgorithmsOfOtherProductsAreRightOrRejected) {
  const Context first = measuring();
  const auto expected = test::two_layer_step(first, Dtype::bf16);
  save_plans(first, path);
  forge([](PlanFile& file) {
    std::vector<PlanRecord*> products;
    for (auto& section : file.sections) {
      for (PlanRecord& record : section.records) {
        if (record.subject == PlanSubject::product) products.push_back(&record);
      }
    }
    for (std::size_t i = 0; i + 1 < products.size(); ++i) std::swap(products[i]->algorithm, products[i + 1]->algorithm);
  });
  const Context second = measuring();
  EXPECT_GT(load_plans(second, path).plans, 0);
  test::expect_equal(test::two_layer_step(second, Dtype::bf16), expected);
}

TEST_F(CudaPlanFileTest, AStrategyThatIsImpossibleIsRejected) {
  const Context first = measuring();
  const auto expected = test::two_layer_step(first, Dtype::bf16);
  save_plans(first, path);
  // The bias gradient of a 16-bit layer is wider than what that product could write.
  forge_records([](PlanRecord& record) {
    if (record.subject == PlanSubject::input_gradient) record.way = "epilogue";
  });
  const Context second = measuring();
  load_plans(second, path);
  test::expect_equal(test::two_layer_step(second, Dtype::bf16), expected);
  EXPECT_GT(second.counters().rejected_candidates, 0);
  EXPECT_GT(second.counters().plans_measured, 0);
  ASSERT_FALSE(second.warnings().empty());
  EXPECT_THAT(second.warnings().front(), HasSubstr("the strategy epilogue was rejected"));
}

TEST_F(CudaPlanFileTest, RecordsOfAnotherFormAreLeftOut) {
  const Context first = measuring();
  const auto expected = test::two_layer_step(first, Dtype::f32);
  save_plans(first, path);
  int place = 0;
  forge_records([&](PlanRecord& record) {
    switch (place++ % 4) {
      case 0: record.key.pop_back(); break;
      case 1: record.candidates.clear(); break;
      case 2: record.algorithm.push_back(1); break;
      default: record.key.clear();
    }
    if (!record.way.empty()) record.way = "magic";
  });
  const Context second = measuring();
  const PlanFileReport report = load_plans(second, path);
  EXPECT_EQ(report.ignored, "");
  EXPECT_EQ(report.plans, 0);
  test::expect_equal(test::two_layer_step(second, Dtype::f32), expected);
  EXPECT_EQ(second.counters().plans_loaded, 0);
  EXPECT_GT(second.counters().plans_measured, 0);
}

TEST_F(CudaPlanFileTest, FilesOfOtherCardsAndSettingsAreIgnored) {
  const Context first = measuring();
  const auto expected = test::two_layer_step(first, Dtype::f32);
  save_plans(first, path);
  const std::string whole = test::read_file(path);
  using Edit = std::function<void(detail::PlanSource&)>;
  const std::pair<const char*, Edit> edits[] = {
      {"the card", [](auto& source) { source.card = "abacus"; }},
      {"driver", [](auto& source) { ++source.driver; }},
      {"cuBLASLt", [](auto& source) { --source.library; }},
      {"workspace", [](auto& source) { source.workspace *= 2; }},
      {"math mode", [](auto& source) { source.math = "tf32"; }},
      {"deterministic", [](auto& source) { source.deterministic = true; }},
  };
  for (const auto& [what, edit] : edits) {
    SCOPED_TRACE(what);
    directory.write("plans.json", whole);
    forge([&edit = edit](PlanFile& file) { edit(file.sections.front().source); });
    const Context second = measuring();
    const PlanFileReport report = load_plans(second, path);
    EXPECT_THAT(report.ignored, HasSubstr(what));
    EXPECT_EQ(report.plans, 0);
    test::expect_equal(test::two_layer_step(second, Dtype::f32), expected);
    EXPECT_EQ(second.counters().plans_loaded, 0);
    EXPECT_THAT(second.warnings(), IsEmpty());
  }
}

TEST_F(CudaPlanFileTest, DamagedFilesAreIgnoredAndTrainingGoesOn) {
  const Context first = measuring();
  const auto expected = test::two_layer_step(first, Dtype::f32);
  save_plans(first, path);
  const std::string whole = test::read_file(path);
  const Context second = Context::cuda();
  for (std::size_t length = 0; length < whole.size(); length += 97) {
    directory.write("plans.json", whole.substr(0, length));
    EXPECT_NE(load_plans(second, path).ignored, "") << length;
    std::string edited = whole;
    edited[length] = static_cast<char>(edited[length] ^ 1);
    directory.write("plans.json", edited);
    EXPECT_NE(load_plans(second, path).ignored, "") << length;
  }
  test::expect_equal(test::two_layer_step(second, Dtype::f32), expected);
  EXPECT_EQ(second.counters().plans_loaded, 0);
}

TEST_F(CudaPlanFileTest, DeterministicContextsSaveWhatTheyVerified) {
  const ContextOptions options{.plans = PlanPolicy::measure, .deterministic = true};
  const Context first = Context::cuda(options);
  const auto expected = test::two_layer_step(first, Dtype::bf16);
  for (const PlanReport& plan : plans(first)) EXPECT_EQ(plan.origin, PlanOrigin::verified) << plan.what;
  save_plans(first, path);
  const Context second = Context::cuda(options);
  EXPECT_GT(load_plans(second, path, {.verify = false}).plans, 0);
  test::expect_equal(test::two_layer_step(second, Dtype::bf16), expected);
  EXPECT_EQ(chosen(second), chosen(first));
  EXPECT_EQ(second.counters().plans_measured, 0);
  EXPECT_GT(second.counters().plans_loaded, 0);
  EXPECT_NE(load_plans(measuring(), path).ignored, "");
}

TEST_F(CudaPlanFileTest, EvictedPlansAreTakenFromTheFileAgain) {
  const Context first = measuring();
  const auto expected = test::two_layer_step(first, Dtype::f32);
  save_plans(first, path);
  const Context second = measuring();
  load_plans(second, path);
  second.state().cuda()->plan_table().set_plan_limit(2);
  test::expect_equal(test::two_layer_step(second, Dtype::f32), expected);
  test::expect_equal(test::two_layer_step(second, Dtype::f32), expected);
  EXPECT_EQ(second.counters().plans_measured, 0);
  EXPECT_GT(second.counters().plan_evictions, 0);
}

}  // namespace
}  // namespace fusegrad
