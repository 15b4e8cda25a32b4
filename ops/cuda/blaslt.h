// The one door to cuBLASLt: matrix products with an epilogue. Not installed.
//
// Every product has a plan: descriptors and the algorithm chosen for its key, which is all that cuBLASLt's choice can
// depend on: sizes, leading dimensions, dtypes, transposes, epilogue, whether c is added and is d itself, and the
// alignment of every pointer. Device, library, workspace, math mode and determinism are fixed for a context, which has
// its own plans. The first use of a key chooses: by cuBLASLt's heuristic, or by measurement and verification
// (plan_search.h). Later uses look the plan up and allocate nothing.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <fusegrad/autograd/context_state.h>
#include <fusegrad/ops/cuda/lt_product.h>
#include <fusegrad/ops/cuda/plan_search.h>
#include <fusegrad/ops/plan_file.h>

namespace fusegrad::detail {

class CudaBackend;

/// All that the choice of an algorithm depends on. Plan files hold these words: whoever changes what one of them means
/// raises kPlanFileVersion.
struct PlanKey {
  std::array<std::uint64_t, 9> words = {};
  bool operator==(const PlanKey&) const = default;
};
struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const noexcept;
};
PlanKey key_of(const LtProduct& product);
/// None if the record's has another number of words.
std::optional<PlanKey> key_of(const PlanRecord& record);

class Blaslt {
 public:
  /// Errors: DeviceError if the library is older than this code was written for; CudaError.
  Blaslt(CudaBackend& backend, const ContextSettings& settings);
  ~Blaslt();
  Blaslt(const Blaslt&) = delete;
  Blaslt& operator=(const Blaslt&) = delete;

  /// Enqueues the product on the execution's stream. Null, with nothing enqueued, if cuBLASLt has no algorithm for it
  /// that is known to be right; else what ran, a text that lives as long as the context.
  /// Errors: CudaError for any other failure.
  const std::string* run(const CudaExecution& execution, const LtProduct& product);

  /// Algorithms that cuBLASLt offers for the product: its own heuristic's, best first, and those it offers for other
  /// epilogues of the same product, if they do this one. Not those that are known to be wrong, unless asked for.
  std::vector<Algorithm> algorithms(const LtProduct& product, bool with_known_bad = false) const;
  /// Enqueues the product with one of them. False if it does not do it. Errors: CudaError.
  bool launch(const LtProduct& product, const Algorithm& algorithm, CUstream_st* stream) const;
  /// "algorithm 66, tile 20, stages 35, split 2": the numbers by which cuBLASLt names them.
  static std::string describe(const Algorithm& algorithm);

  /// Rows that one product may have, when the longest row of its operands takes `ld` elements (or mask bits): kernels
  /// that count elements in 32 bits must not see 2^31 of them. At least 1.
  std::int64_t rows_per_product(std::int64_t ld) const { return std::max<std::int64_t>(1, (element_limit_ - 1) / ld); }

  /// A stopwatch of the context's own, made at its first use. Errors: CudaError.
  Stopwatch& stopwatch();
  /// True if plans may be measured or verified now: not while a graph is being captured.
  bool may_search() const;
  /// What has been chosen so far.
  std::vector<PlanReport> reports() const;

  // Plan files.
  /// What the choices of this context depend on beside their keys. Errors: CudaError.
  const PlanSource& source();
  /// What was measured or verified here, and what was read and not used yet.
  std::vector<PlanRecord> records() const;
  /// True if something was measured here.
  bool has_measured() const;
  /// Algorithms to use for products that were not measured here. Each is verified first if `verify`. Records of other
  /// subjects and of another form are left out; returns how many are not.
  int propose(const std::vector<PlanRecord>& records, bool verify);

  /// For tests: makes `epilogue` one for which there is no algorithm, or undoes that.
  void force_no_algorithm(Epilogue epilogue, bool absent = true) {
    absent_.set(static_cast<std::size_t>(epilogue), absent);
  }
  /// For tests: as if kernels could count only to `limit`.
  void set_element_limit(std::int64_t limit) { element_limit_ = limit; }
  /// For tests: keeps at most `limit` plans, dropping the one that was not used for longest.
  void set_plan_limit(std::size_t limit) { plan_limit_ = limit; }

 private:
  struct Problem;
  struct Plan;
  struct Handle;
  /// An algorithm that a file has for a product.
  struct Proposal {
    PlanRecord record;
    Algorithm algorithm = {};
    bool trusted = false;
  };

  bool within_limits(const LtProduct& product) const;
  std::vector<Algorithm> heuristic(const Problem& problem, const LtProduct& product) const;
  bool offers(const Problem& problem, const LtProduct& product, const Algorithm& algorithm) const;
  bool launch(const Problem& problem, const LtProduct& product, const Algorithm& algorithm, CUstream_st* stream) const;
  Plan& plan_for(const CudaExecution& execution, const LtProduct& product);
  std::unique_ptr<Plan> make_plan(const CudaExecution& execution, const LtProduct& product);
  std::optional<SearchResult> try_candidates(const CudaExecution& execution, const LtProduct& product, Plan& plan,
                                             Clock clock);
  void search_plan(const CudaExecution& execution, const LtProduct& product, Plan& plan, Clock clock);
  bool take_proposal(const CudaExecution& execution, const LtProduct& product, Plan& plan);
  void evict_one();
  static std::string note_of(const Plan& plan);

  CudaBackend& backend_;
  ContextSettings settings_;
  std::unique_ptr<Handle> handle_;
  void* workspace_ = nullptr;
  std::unique_ptr<Stopwatch> stopwatch_;
  std::unordered_map<PlanKey, std::unique_ptr<Plan>, PlanKeyHash> plans_;
  std::unordered_map<PlanKey, Proposal, PlanKeyHash> proposals_;
  std::optional<PlanSource> source_;
  std::set<std::string> texts_;  // notes of plans, evicted ones included: tapes point to them
  std::size_t plan_limit_ = 4096;
  std::int64_t tick_ = 0;
  std::bitset<kEpilogues> absent_;
  std::int64_t element_limit_ = std::int64_t{1} << 31;
};

}  // namespace fusegrad::detail
