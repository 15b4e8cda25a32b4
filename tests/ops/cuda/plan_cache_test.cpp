// The plan cache of a GPU's context: a plan file that is read and written by itself.
#include <cstdlib>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "tests/ops/cuda/plan_file_fixture.h"
#include "tests/support/two_layer_step.h"

#include <fusegrad/fusegrad.h>

namespace fusegrad {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// Sets an environment variable as long as it lives.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Environment() { unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
};

using CudaPlanCacheTest = test::PlanFileFixture;

TEST_F(CudaPlanCacheTest, TheCacheIsReadAndWrittenByItself) {
  std::vector<test::Values> expected;
  {
    const Environment cache("FUSEGRAD_PLAN_CACHE", path);
    const Environment policy("FUSEGRAD_PLANS", "measure");
    {
      const Context first = Context::cuda();
      EXPECT_THAT(first.warnings(), IsEmpty()) << "the first run has no file";
      expected = test::two_layer_step(first, Dtype::bf16);
      EXPECT_GT(first.counters().plans_measured, 0);
      EXPECT_THAT(directory.names(), IsEmpty());
    }
    EXPECT_THAT(directory.names(), testing::ElementsAre("plans.json"));
    const Context second = Context::cuda();
    EXPECT_THAT(second.warnings(), IsEmpty());
    test::expect_equal(test::two_layer_step(second, Dtype::bf16), expected);
    EXPECT_EQ(second.counters().plans_measured, 0);
    EXPECT_GT(second.counters().plans_loaded, 0);
  }
  // Without the variable there is no cache.
  EXPECT_EQ(measuring().counters().plans_loaded, 0);
}

TEST_F(CudaPlanCacheTest, TheCacheGrowsWithWhatIsNew) {
  test::two_layer_step(measuring(path), Dtype::bf16);
  const std::string first = test::read_file(path);
  test::two_layer_step(measuring(path), Dtype::bf16);
  EXPECT_EQ(test::read_file(path), first) << "nothing was measured";
  test::two_layer_step(Context::cuda({.plan_cache = path}), Dtype::bf16, {.batch = 32});
  EXPECT_EQ(test::read_file(path), first) << "nothing was measured";
  test::two_layer_step(measuring(path), Dtype::bf16, {.batch = 64});
  EXPECT_NE(test::read_file(path), first);
  for (const std::int64_t batch : {64, 128}) {
    const Context context = measuring(path);
    test::two_layer_step(context, Dtype::bf16, {.batch = batch});
    EXPECT_EQ(context.counters().plans_measured, 0) << batch;
  }
  // Contexts of another kind have plans of their own in it.
  test::two_layer_step(Context::cuda({.math = MathMode::tf32, .plans = PlanPolicy::measure, .plan_cache = path}),
                       Dtype::f32);
  const Context again = measuring(path);
  test::two_layer_step(again, Dtype::bf16);
  EXPECT_EQ(again.counters().plans_measured, 0);
}

TEST_F(CudaPlanCacheTest, ACacheThatIsDamagedIsNamedAndReplaced) {
  test::two_layer_step(measuring(path), Dtype::f32);
  const std::string whole = test::read_file(path);
  directory.write("plans.json", whole.substr(0, whole.size() / 2));
  {
    const Context context = measuring(path);
    ASSERT_EQ(context.warnings().size(), 1U);
    EXPECT_THAT(context.warnings().front(), HasSubstr("the plan cache \"" + path + "\" was ignored: its checksum"));
    test::two_layer_step(context, Dtype::f32);
    EXPECT_GT(context.counters().plans_measured, 0);
  }
  EXPECT_THAT(measuring(path).warnings(), IsEmpty());
}

TEST_F(CudaPlanCacheTest, AFileThatIsNoPlanFileIsLeftAlone) {
  directory.write("plans.json", "precious");
  {
    const Context context = measuring(path);
    ASSERT_EQ(context.warnings().size(), 1U);
    test::two_layer_step(context, Dtype::f32);
  }
  EXPECT_EQ(test::read_file(path), "precious");
  EXPECT_THROW(save_plans(measuring(), path), IoError);
}

TEST_F(CudaPlanCacheTest, ACacheThatCannotBeWrittenStopsNothing) {
  const Context context = measuring(directory / "missing/plans.json");
  EXPECT_THAT(context.warnings(), IsEmpty());
  test::two_layer_step(context, Dtype::f32);
}

}  // namespace
}  // namespace fusegrad
