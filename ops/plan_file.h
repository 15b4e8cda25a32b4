// The format of plan files: JSON, versioned, with a checksum. Knows neither cuBLASLt nor GPUs. Not installed.
//
//   {"format": "fusegrad plans", "version": 2, "checksum": "...", "sections": [
//    {"card", "driver", "library", "workspace", "math", "deterministic", "plans": [
//     {"subject", "what", "key": "1000 800 ...", "algorithm": "42 0 ...", "candidates": [["name", us], ...]}, ...]},
//     ...]}
//
// A section holds the plans of one kind of context. Keys and algorithms are words of 64 bits, in hexadecimal strings,
// because most readers of JSON keep 53 bits of a number. A fused step has its "way" where a product has its
// "algorithm". The checksum is the CRC-32 of all that follows its line: a file that was cut short or edited is no
// longer read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fusegrad/ops/plans.h>

namespace fusegrad::detail {

/// To be raised with every change of the format, or of what the words of a key mean: PlanKey in
/// ops/cuda/plan_key.h.
inline constexpr int kPlanFileVersion = 2;

/// All that a choice depends on beside its key. Plans are for one of these only.
struct PlanSource {
  std::string card = {};       ///< name and size of the processor
  std::int64_t driver = 0;     ///< as CUDA numbers it: 13000 is 13.0
  std::int64_t library = 0;    ///< cuBLASLt's version: 130100 is 13.1
  std::int64_t workspace = 0;  ///< bytes that an algorithm may use
  std::string math = {};       ///< "fp32" or "tf32"
  bool deterministic = false;
  bool operator==(const PlanSource&) const = default;
};

/// How plans were chosen for. A backward step is known by the gradient that it makes.
enum class PlanSubject : std::uint8_t { product, forward, input_gradient, bias_gradient };

/// One choice, as a file has it.
struct PlanRecord {
  PlanSubject subject = PlanSubject::product;
  std::vector<std::uint64_t> key = {};
  std::vector<std::uint64_t> algorithm = {};  ///< of a product
  std::string way = {};                       ///< of a step: the name of what was chosen
  std::string what = {};
  std::vector<PlanReport::Candidate> candidates = {};
};

struct PlanSection {
  PlanSource source = {};
  std::vector<PlanRecord> records = {};
};

struct PlanFile {
  std::vector<PlanSection> sections = {};
};

/// The file's bytes. Records are sorted, so that equal plans give equal bytes.
std::string format_plan_file(PlanFile file);

struct ParsedPlanFile {
  PlanFile file = {};
  std::string problem = {};  ///< what is wrong with the text; empty: nothing
};
ParsedPlanFile parse_plan_file(std::string_view text);

inline constexpr std::string_view kNoSuchFile = "there is no such file";

/// The section for `source` in the file at `path`, and how many plans it has, or why the file is to be ignored.
struct PlanSectionRead {
  PlanSection section = {};
  PlanFileReport report = {};
};
PlanSectionRead read_plan_section(const std::string& path, const PlanSource& source);

/// Merges `section` into the file at `path`, where its records replace those with the same key. Errors: as save_plans.
void write_plan_section(const std::string& path, PlanSection section);

}  // namespace fusegrad::detail
