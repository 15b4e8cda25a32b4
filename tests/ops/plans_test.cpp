// Plans and plan files where there is nothing to choose, and the format of the files: what is whole is read as it was
// written, and everything else is refused.
#include <cstdlib>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "tests/io/message_of.h"
#include "tests/io/temporary_directory.h"

#include <fusegrad/fusegrad.h>
#include <fusegrad/ops/plan_file.h>

namespace fusegrad {
namespace {

using detail::format_plan_file;
using detail::parse_plan_file;
using detail::ParsedPlanFile;
using detail::PlanFile;
using detail::PlanRecord;
using detail::PlanSection;
using detail::PlanSource;
using detail::PlanSubject;
using testing::HasSubstr;
using testing::IsEmpty;

PlanSource source_of(const std::string& card) {
  return {.card = card, .driver = 13000, .library = 130100, .workspace = 1 << 25, .math = "tf32"};
}

PlanRecord product(std::uint64_t first, const std::string& what) {
  return {.subject = PlanSubject::product,
          .key = {first, 0, std::numeric_limits<std::uint64_t>::max(), (std::uint64_t{1} << 53) + 1},
          .algorithm = {9, std::numeric_limits<std::uint64_t>::max() - 1},
          .what = what,
          .candidates = {{"algorithm 66, \"tile\" \n20", 12.345}, {"algorithm 13", 0}, {"another", 1e9}}};
}

PlanFile some_file() {
  return {{{.source = source_of("a card"),
            .records = {product(1, "a product"),
                        {.subject = PlanSubject::forward,
                         .key = {7},
                         .way = "product and pass",
                         .what = "a forward step",
                         .candidates = {{"product and pass", 1.5}, {"in product", 2}}},
                        {.subject = PlanSubject::input_gradient,
                         .key = {4, 5},
                         .way = "split",
                         .what = "a step",
                         .candidates = {{"split", 3.25}}}}},
           {.source = {.card = "another", .math = "fp32", .deterministic = true}}}};
}

bool equal(const PlanRecord& a, const PlanRecord& b) {
  return a.subject == b.subject && a.key == b.key && a.algorithm == b.algorithm && a.way == b.way && a.what == b.what &&
         std::ranges::equal(a.candidates, b.candidates,
                            [](const auto& x, const auto& y) { return x.name == y.name && x.us == y.us; });
}

TEST(PlanFileTest, KeepsEveryBit) {
  const PlanFile file = some_file();
  const std::string text = format_plan_file(file);
  const ParsedPlanFile parsed = parse_plan_file(text);
  ASSERT_EQ(parsed.problem, "");
  ASSERT_EQ(parsed.file.sections.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    const PlanSection& section = parsed.file.sections[i];
    EXPECT_EQ(section.source, file.sections[i].source);
    ASSERT_EQ(section.records.size(), file.sections[i].records.size());
    for (std::size_t j = 0; j < section.records.size(); ++j) {
      EXPECT_TRUE(equal(section.records[j], file.sections[i].records[j])) << i << " " << j;
    }
  }
  EXPECT_EQ(format_plan_file(parsed.file), text);
}

TEST(PlanFileTest, CutShortAnywhereIsRefused) {
  const std::string text = format_plan_file(some_file());
  for (std::size_t length = 0; length < text.size(); ++length) {
    const ParsedPlanFile parsed = parse_plan_file(text.substr(0, length));
    EXPECT_NE(parsed.problem, "") << length;
    EXPECT_THAT(parsed.file.sections, IsEmpty()) << length;
  }
  EXPECT_NE(parse_plan_file(text + " ").problem, "");
}

TEST(PlanFileTest, EveryEditIsFound) {
  const std::string text = format_plan_file(some_file());
  for (std::size_t place = 0; place < text.size(); ++place) {
    for (const char to : {'0', '9', 'x', ' ', '"', '}', '\0', '\xff'}) {
      if (text[place] == to) continue;
      std::string edited = text;
      edited[place] = to;
      EXPECT_NE(parse_plan_file(edited).problem, "") << place << " " << to;
    }
    EXPECT_NE(parse_plan_file(text.substr(0, place) + text.substr(place + 1)).problem, "") << place;
  }
}

TEST(PlanFileTest, SaysWhatIsWrong) {
  const std::string text = format_plan_file(some_file());
  EXPECT_THAT(parse_plan_file("{}").problem, HasSubstr("no plan file"));
  EXPECT_THAT(parse_plan_file(text.substr(0, 9)).problem, HasSubstr("cut short"));
  EXPECT_THAT(parse_plan_file(text.substr(0, text.size() - 1)).problem, HasSubstr("checksum"));
  std::string later = text;
  const std::string version = "\"version\": " + std::to_string(detail::kPlanFileVersion);
  later.replace(later.find(version), version.size(), "\"version\": 99");
  EXPECT_THAT(parse_plan_file(later).problem, HasSubstr("its format has version 99, and this fusegrad reads version " +
                                                        std::to_string(detail::kPlanFileVersion)));
}

class SavedPlansTest : public testing::Test {
 protected:
  test::TemporaryDirectory directory;
  std::string path = directory / "plans.json";
};

TEST_F(SavedPlansTest, SectionsAreMerged) {
  detail::write_plan_section(path, {.source = source_of("one"), .records = {product(1, "old"), product(2, "kept")}});
  detail::write_plan_section(path, {.source = source_of("two"), .records = {product(1, "of two")}});
  detail::write_plan_section(path, {.source = source_of("one"), .records = {product(1, "new"), product(3, "more")}});
  const auto one = detail::read_plan_section(path, source_of("one"));
  EXPECT_EQ(one.report.plans, 3);
  EXPECT_EQ(one.report.ignored, "");
  std::vector<std::string> names;
  for (const PlanRecord& record : one.section.records) names.push_back(record.what);
  EXPECT_THAT(names, testing::ElementsAre("kept", "more", "new"));
  EXPECT_EQ(detail::read_plan_section(path, source_of("two")).report.plans, 1);
  EXPECT_THAT(directory.names(), testing::ElementsAre("plans.json"));
}

TEST_F(SavedPlansTest, AreForOneKindOfContext) {
  const PlanSource here = source_of("card");
  const auto reason = [&](const PlanSource& other) {
    std::filesystem::remove(path);
    detail::write_plan_section(path, {.source = other, .records = {product(1, "p")}});
    const auto read = detail::read_plan_section(path, here);
    EXPECT_EQ(read.report.plans, 0);
    EXPECT_THAT(read.section.records, IsEmpty());
    return read.report.ignored;
  };
  PlanSource other = here;
  other.card = "older card";
  EXPECT_EQ(reason(other), "it was made for the card older card, not card");
  other = here;
  other.driver = 12080;
  EXPECT_EQ(reason(other), "it was made for driver 12080, not 13000");
  other = here;
  other.library = 120900;
  EXPECT_EQ(reason(other), "it was made for cuBLASLt 120900, not 130100");
  other = here;
  other.workspace = 4;
  EXPECT_THAT(reason(other), HasSubstr("workspace"));
  other = here;
  other.math = "fp32";
  EXPECT_EQ(reason(other), "it was made for math mode fp32, not tf32");
  other = here;
  other.deterministic = true;
  EXPECT_EQ(reason(other), "it was made for deterministic true, not false");
}

TEST_F(SavedPlansTest, DamagedOnesAreReplacedAndOtherFilesAreNot) {
  const std::string whole = format_plan_file(some_file());
  for (const std::size_t length : {std::size_t{0}, std::size_t{5}, whole.size() / 2}) {
    directory.write("plans.json", whole.substr(0, length));
    detail::write_plan_section(path, {.source = source_of("one"), .records = {product(1, "p")}});
    EXPECT_EQ(detail::read_plan_section(path, source_of("one")).report.plans, 1) << length;
  }
  const std::string precious = "{\"weights\": [1, 2, 3]}";
  directory.write("plans.json", precious);
  const std::string message =
      test::message_of<IoError>([&] { detail::write_plan_section(path, {.source = source_of("one")}); });
  EXPECT_THAT(message, HasSubstr("is no plan file"));
  EXPECT_EQ(test::read_file(path), precious);
}

// A CPU.

TEST_F(SavedPlansTest, ACpuHasOneWayForEachStep) {
  const Context context = Context::cpu({.plans = PlanPolicy::measure});
  const std::vector<PlanReport> reports = plans(context);
  ASSERT_FALSE(reports.empty());
  for (const PlanReport& report : reports) {
    EXPECT_NE(report.what, "");
    EXPECT_EQ(report.candidates.size(), 1U);
    EXPECT_EQ(report.candidates.front().us, 0);
    EXPECT_EQ(report.kind, PlanKind::step);
    EXPECT_EQ(name_of(report.origin), "ranked");
    EXPECT_EQ(report.remark, "");
  }
}

TEST_F(SavedPlansTest, TheSameCallsWorkOnACpu) {
  const Context context = Context::cpu();
  save_plans(context, path);
  PlanFileReport report = load_plans(context, path);
  EXPECT_EQ(report.ignored, "");
  EXPECT_EQ(report.plans, 0);
  report = load_plans(context, path, {.verify = false});
  EXPECT_EQ(report.ignored, "");
  // What a GPU's context has saved there stays.
  detail::write_plan_section(path, {.source = source_of("a card"), .records = {product(1, "p")}});
  save_plans(context, path);
  EXPECT_EQ(detail::read_plan_section(path, source_of("a card")).report.plans, 1);
  EXPECT_EQ(context.counters().plans_loaded, 0);
  EXPECT_THAT(context.warnings(), IsEmpty());
}

TEST_F(SavedPlansTest, AFileThatDoesNotFitIsIgnoredWithTheReason) {
  const Context context = Context::cpu();
  EXPECT_EQ(load_plans(context, path).ignored, "there is no such file");
  EXPECT_THAT(load_plans(context, directory.path().string()).ignored, HasSubstr("not a regular file"));
  detail::write_plan_section(path, {.source = source_of("a card"), .records = {product(1, "p")}});
  EXPECT_EQ(load_plans(context, path).ignored, "it was made for the card a card, not cpu");
  const std::string whole = test::read_file(path);
  for (std::size_t length = 0; length < whole.size(); length += 7) {
    directory.write("plans.json", whole.substr(0, length));
    EXPECT_NE(load_plans(context, path).ignored, "") << length;
  }
  directory.write("plans.json", "weights");
  EXPECT_EQ(load_plans(context, path).ignored, "it is no plan file of fusegrad");
  EXPECT_THAT(context.warnings(), IsEmpty()) << "the report says it";
}

TEST_F(SavedPlansTest, APipeIsNotWaitedFor) {
  const std::string pipe = directory / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(load_plans(Context::cpu(), pipe).ignored, HasSubstr("not a regular file"));
}

TEST_F(SavedPlansTest, SavingSaysWhyItFailed) {
  const Context context = Context::cpu();
  EXPECT_THAT(test::message_of<IoError>([&] { save_plans(context, directory / "missing/plans.json"); }),
              HasSubstr("save_plans: cannot"));
  EXPECT_THAT(test::message_of<IoError>([&] { save_plans(context, directory.path().string()); }),
              HasSubstr("not a regular file"));
}

TEST_F(SavedPlansTest, ACpuNeedsNoCache) {
  {
    const Context context = Context::cpu({.plan_cache = path});
    EXPECT_THAT(context.warnings(), IsEmpty());
  }
  EXPECT_THAT(directory.names(), IsEmpty());
}

}  // namespace
}  // namespace fusegrad
