#include <algorithm>
#include <charconv>
#include <cmath>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>
#include <zlib.h>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/file.h>
#include <fusegrad/ops/plan_file.h>

namespace fusegrad::detail {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kHead = "{\n \"format\": \"fusegrad plans\",\n \"version\": ";
constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;

constexpr std::pair<PlanSubject, std::string_view> kSubjects[] = {{PlanSubject::product, "product"},
                                                                  {PlanSubject::forward, "forward"},
                                                                  {PlanSubject::input_gradient, "input gradient"},
                                                                  {PlanSubject::bias_gradient, "bias gradient"}};

/// The lines between the head and what the checksum covers.
std::string version_and_checksum(std::string_view covered) {
  const auto* bytes = reinterpret_cast<const Bytef*>(covered.data());
  return detail::format("{},\n \"checksum\": \"{:08x}\",\n", kPlanFileVersion,
                        crc32_z(crc32_z(0, nullptr, 0), bytes, covered.size()));
}

std::string text_of(const std::vector<std::uint64_t>& words) { return detail::format("{:x}", fmt::join(words, " ")); }

/// Errors: IoError.
std::vector<std::uint64_t> words_of(const std::string& text) {
  std::vector<std::uint64_t> words;
  const char* const end = text.data() + text.size();
  for (const char* next = text.data(); next < end;) {
    const auto [stop, error] = std::from_chars(next, end, words.emplace_back(), 16);
    require<IoError>(error == std::errc{} && (stop == end || *stop == ' '), "\"{:.64}\" are no words", text);
    next = stop + (stop != end);
  }
  return words;
}

Json json_of(const PlanRecord& record) {
  const auto* const subject =
      std::ranges::find(kSubjects, record.subject, &std::pair<PlanSubject, std::string_view>::first);
  Json json{{"subject", subject->second}, {"what", record.what}, {"key", text_of(record.key)}};
  if (record.subject == PlanSubject::product) {
    json["algorithm"] = text_of(record.algorithm);
  } else {
    json["way"] = record.way;
  }
  Json candidates = Json::array();
  for (const auto& [name, us] : record.candidates) {
    candidates.push_back(Json::array({name, std::isfinite(us) ? std::round(us * 1000) / 1000 : 0}));
  }
  json["candidates"] = std::move(candidates);
  return json;
}

/// Errors: IoError; Json::exception.
PlanRecord record_of(const Json& json) {
  const auto text = json.at("subject").get<std::string>();
  const auto* const subject = std::ranges::find(kSubjects, text, &std::pair<PlanSubject, std::string_view>::second);
  require<IoError>(subject != std::end(kSubjects), "the subject \"{:.64}\" is not known", text);
  PlanRecord record{.subject = subject->first,
                    .key = words_of(json.at("key").get<std::string>()),
                    .what = json.at("what").get<std::string>()};
  if (record.subject == PlanSubject::product) {
    record.algorithm = words_of(json.at("algorithm").get<std::string>());
  } else {
    record.way = json.at("way").get<std::string>();
  }
  for (const Json& candidate : json.at("candidates")) {
    record.candidates.push_back({candidate.at(0).get<std::string>(), candidate.at(1).get<double>()});
  }
  return record;
}

Json json_of(const PlanSection& section) {
  const PlanSource& source = section.source;
  Json plans = Json::array();
  for (const PlanRecord& record : section.records) plans.push_back(json_of(record));
  return {{"card", source.card},           {"driver", source.driver}, {"library", source.library},
          {"workspace", source.workspace}, {"math", source.math},     {"deterministic", source.deterministic},
          {"plans", std::move(plans)}};
}

PlanSection section_of(const Json& json) {
  PlanSection section{.source = {.card = json.at("card").get<std::string>(),
                                 .driver = json.at("driver").get<std::int64_t>(),
                                 .library = json.at("library").get<std::int64_t>(),
                                 .workspace = json.at("workspace").get<std::int64_t>(),
                                 .math = json.at("math").get<std::string>(),
                                 .deterministic = json.at("deterministic").get<bool>()}};
  for (const Json& plan : json.at("plans")) section.records.push_back(record_of(plan));
  return section;
}

/// The first difference between two sources, and how much is the same before it.
struct Difference {
  int same = 0;
  std::string text = {};  ///< empty: there is none
};
Difference difference(const PlanSource& found, const PlanSource& wanted) {
  Difference difference;
  const auto compare = [&](std::string_view what, const auto& has, const auto& should) {
    if (!difference.text.empty()) return;
    if (has == should) {
      ++difference.same;
    } else {
      difference.text = detail::format("{} {}, not {}", what, has, should);
    }
  };
  compare("the card", found.card, wanted.card);
  compare("driver", found.driver, wanted.driver);
  compare("cuBLASLt", found.library, wanted.library);
  compare("a workspace of", found.workspace, wanted.workspace);
  compare("math mode", found.math, wanted.math);
  compare("deterministic", found.deterministic, wanted.deterministic);
  return difference;
}

/// What is at a path; `exists` is false if nothing is. Errors: IoError.
struct FileText {
  bool exists = false;
  std::string text = {};
};
FileText read_text(const std::string& op, const std::string& path) {
  struct ::stat status = {};
  if (FileCalls::system().stat(path.c_str(), &status) != 0 && errno == ENOENT) return {};
  // Others may keep whoever opens them waiting; and what cannot be asked for cannot be opened either.
  require<IoError>(status.st_mode == 0 || S_ISREG(status.st_mode), "{}: \"{}\" is not a regular file", op, path);
  InputFile file(op, path);
  const std::int64_t bytes = file.size();
  require<IoError>(bytes <= kMostBytes, "{}: \"{}\" has {} bytes, more than a plan file may have ({})", op, path, bytes,
                   kMostBytes);
  FileText result{.exists = true, .text = std::string(static_cast<std::size_t>(bytes), '\0')};
  file.read(result.text.data(), result.text.size());
  return result;
}

void merge(PlanSection& into, PlanSection&& from) {
  const auto id = [](const PlanRecord& record) { return std::tie(record.subject, record.key); };
  // Of equal ones the new one comes first, and stays.
  std::vector<PlanRecord> all = std::move(from.records);
  all.insert(all.end(), std::make_move_iterator(into.records.begin()), std::make_move_iterator(into.records.end()));
  std::ranges::stable_sort(all, {}, id);
  const auto same = [&](const PlanRecord& a, const PlanRecord& b) { return id(a) == id(b); };
  all.erase(std::unique(all.begin(), all.end(), same), all.end());
  into.records = std::move(all);
}

}  // namespace

std::string format_plan_file(PlanFile file) {
  Json sections = Json::array();
  for (PlanSection& section : file.sections) {
    std::ranges::sort(section.records, {},
                      [](const PlanRecord& record) { return std::tie(record.subject, record.what, record.key); });
    sections.push_back(json_of(section));
  }
  const Json body{{"sections", std::move(sections)}};
  // Without the opening brace, which the head has.
  const std::string covered = body.dump(1, ' ', false, Json::error_handler_t::replace).substr(2) + "\n";
  return detail::format("{}{}{}", kHead, version_and_checksum(covered), covered);
}

ParsedPlanFile parse_plan_file(std::string_view text) {
  ParsedPlanFile parsed;
  const auto refuse = [&](std::string problem) {
    parsed.problem = std::move(problem);
    parsed.file = {};
    return parsed;
  };
  if (!text.starts_with(kHead)) {
    return refuse(kHead.starts_with(text) ? "it is cut short" : "it is no plan file of fusegrad");
  }
  const std::string_view rest = text.substr(kHead.size());
  const std::size_t size = version_and_checksum({}).size();
  int version = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), version);
  if (version != kPlanFileVersion && rest.find(',') != std::string_view::npos) {
    return refuse(detail::format("its format has version {}, and this fusegrad reads version {}",
                                 rest.substr(0, std::min<std::size_t>(rest.find(','), 16)), kPlanFileVersion));
  }
  if (rest.size() < size || rest.substr(0, size) != version_and_checksum(rest.substr(size))) {
    return refuse("its checksum is wrong: it is cut short, damaged or changed by hand");
  }
  const Json json = Json::parse(text, nullptr, false);
  try {
    for (const Json& section : json.at("sections")) parsed.file.sections.push_back(section_of(section));
  } catch (const IoError& error) {
    return refuse(error.what());
  } catch (const Json::exception&) {
    return refuse("it is not what fusegrad writes");
  }
  return parsed;
}

PlanSectionRead read_plan_section(const std::string& path, const PlanSource& source) {
  PlanSectionRead read;
  ParsedPlanFile parsed;
  try {
    const FileText file = read_text("load_plans", path);
    if (!file.exists) {
      read.report.ignored = kNoSuchFile;
      return read;
    }
    parsed = parse_plan_file(file.text);
  } catch (const IoError& error) {
    parsed.problem = error.what();
  }
  if (!parsed.problem.empty()) {
    read.report.ignored = std::move(parsed.problem);
    return read;
  }
  Difference closest{.same = -1};
  for (PlanSection& section : parsed.file.sections) {
    Difference unlike = difference(section.source, source);
    if (unlike.text.empty()) {
      read.section = std::move(section);
      read.report.plans = static_cast<std::int64_t>(read.section.records.size());
      return read;
    }
    if (unlike.same > closest.same) closest = std::move(unlike);
  }
  read.report.ignored = closest.text.empty() ? "it is empty" : "it was made for " + closest.text;
  return read;
}

void write_plan_section(const std::string& path, PlanSection section) {
  const std::string op = "save_plans";
  const std::string former = read_text(op, path).text;
  // Damaged plan files and those of other versions are replaced; a file that someone named by mistake is not.
  require<IoError>(former.starts_with(kHead) || kHead.starts_with(former),
                   "{}: \"{}\" is there and is no plan file; it was left as it is", op, path);
  PlanFile file = parse_plan_file(former).file;
  const auto same = std::ranges::find(file.sections, section.source, &PlanSection::source);
  if (same == file.sections.end()) {
    file.sections.push_back(std::move(section));
  } else {
    merge(*same, std::move(section));
  }
  const std::string text = format_plan_file(std::move(file));
  OutputFile out(op, path);
  out.write(text.data(), text.size());
  out.commit();
}

}  // namespace fusegrad::detail
