// What a context has chosen for its products and fused steps, and files that keep the choice.
//
// On a GPU every matrix product has a plan (the cuBLASLt algorithm that runs it) and every fused step a strategy.
// PlanPolicy::measure times the candidates at the first use of a shape, which takes milliseconds to seconds. A plan
// file saves that in later runs:
//
//   fusegrad::Context context = fusegrad::Context::cuda({.plans = fusegrad::PlanPolicy::measure});
//   fusegrad::load_plans(context, "plans.json");   // what is there is not measured again
//   ... train ...
//   fusegrad::save_plans(context, "plans.json");
//
// or, without a line of code, FUSEGRAD_PLAN_CACHE=plans.json (ContextOptions::plan_cache).
//
// A file is a proposal, never an authority: it is read only if it is whole and was made on the same card with the same
// driver, library, math mode and determinism, and each of its algorithms is verified before its first use. A CPU has
// one strategy for everything and nothing to choose: the same calls work there, with nothing to save.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fusegrad/autograd/context.h>

namespace fusegrad {

/// What a plan is for: one matrix product, or one fused step that several products and kernels can make.
enum class PlanKind : std::uint8_t { product, step };

/// How a choice was made.
///   ranked    the library's order of strategies, cuBLASLt's order of algorithms
///   verified  the same, but wrong algorithms were left out (deterministic contexts)
///   measured  the fastest of those that gave right results
///   file      measured or verified by the context that saved it
enum class PlanOrigin : std::uint8_t { ranked, verified, measured, file };

/// "ranked", "verified", "measured" or "file".
std::string_view name_of(PlanOrigin origin);

/// What has been chosen for a product or a fused step, and from what.
struct PlanReport {
  struct Candidate {
    std::string name;  ///< an algorithm or a strategy
    double us = 0;     ///< microseconds; 0: not measured
  };
  std::string what;                        ///< "DRELU_BGRAD 4096 x 2048 x 1024 bf16": rows, columns, length of the sums
  std::vector<Candidate> candidates = {};  ///< the chosen one first; empty: none can do it, and another way runs
  PlanKind kind = PlanKind::product;
  PlanOrigin origin = PlanOrigin::ranked;
  std::string remark = {};  ///< why something was rejected; empty: nothing was
};

/// What the context has chosen so far: fused steps first, then products, each sorted by `what`. On a CPU one report for
/// each kind of step, with the one way that there is.
std::vector<PlanReport> plans(const Context& context);

/// Writes what the context has measured, or in a deterministic context verified, to a JSON file. Plans that the file
/// already holds for other shapes, cards or settings stay in it. The file is replaced as a whole: at any moment it is
/// the old one or the new one. Errors: IoError if it cannot be written, or is there and is no plan file.
void save_plans(const Context& context, const std::string& path);

struct LoadPlansOptions {
  /// Compare the results of each algorithm with the unfused definition before its first use. Deterministic contexts do
  /// it anyway. Without it the file is trusted: whoever can write it decides about right and wrong.
  bool verify = true;
};

struct PlanFileReport {
  std::int64_t plans = 0;    ///< plans and fused steps that were read for this context
  std::string ignored = {};  ///< why the file was ignored; empty: it was not
};

/// Reads plans from a file. They are used from then on for every shape that has not been measured already, whatever the
/// context's PlanPolicy, and such shapes are not measured. One that is found wrong at its first use is rejected,
/// counted in Counters::rejected_candidates and named in Context::warnings(), and the choice is made as if it had not
/// been there. A file that is missing, damaged, changed by hand, of another version of the format, or made on another
/// card or with other settings is ignored, which is no error: the report says why and the context is as it was.
PlanFileReport load_plans(const Context& context, const std::string& path, const LoadPlansOptions& options = {});

}  // namespace fusegrad
