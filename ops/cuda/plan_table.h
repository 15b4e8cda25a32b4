// Runs products by cuBLASLt, each with the plan for its key. Not installed.
//
// The first use of a key chooses: an algorithm that a plan file has for it, cuBLASLt's heuristic, or measurement and
// verification (plan_search.h). Later uses look the plan up and allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/cuda/blaslt.h>
#include <fusegrad/ops/cuda/plan.h>
#include <fusegrad/ops/cuda/plan_records.h>
#include <fusegrad/ops/cuda/plan_search.h>

namespace fusegrad::detail {

class PlanTable {
 public:
  /// `backend` and `blaslt` outlive this.
  PlanTable(CudaBackend& backend, Blaslt& blaslt, const ContextSettings& settings)
      : backend_(backend), blaslt_(blaslt), settings_(settings) {}

  /// Enqueues the product on the execution's stream. Null, with nothing enqueued, if cuBLASLt has no algorithm for it
  /// that is known to be right; else what ran, a text that lives as long as the context.
  /// Errors: CudaError for any other failure.
  const std::string* run(const CudaExecution& execution, const LtProduct& product);

  /// What has been chosen so far.
  std::vector<PlanReport> reports() const;

  // Plan files.
  /// What the choices of this context depend on beside their keys. Errors: CudaError.
  const PlanSource& source();
  /// What was measured or verified here, and what was read and not used yet.
  std::vector<PlanRecord> records() const { return records_of(plans_, proposals_); }
  /// True if something was measured here.
  bool has_measured() const;
  /// Algorithms to use for products that were not measured here. Each is verified first if `verify`. Records of other
  /// subjects and of another form are left out; returns how many are not.
  int propose(const std::vector<PlanRecord>& records, bool verify);

  /// For tests: keeps at most `limit` plans, dropping the one that was not used for longest.
  void set_plan_limit(std::size_t limit) { plan_limit_ = limit; }

 private:
  Plan& plan_for(const CudaExecution& execution, const LtProduct& product);
  void evict_one();
  std::unique_ptr<Plan> make_plan(const CudaExecution& execution, const LtProduct& product);
  bool take_proposal(const CudaExecution& execution, const LtProduct& product, Plan& plan);
  void search_plan(const CudaExecution& execution, const LtProduct& product, Plan& plan, Clock clock);
  std::optional<SearchResult> try_candidates(const CudaExecution& execution, const LtProduct& product, Plan& plan,
                                             Clock clock);

  CudaBackend& backend_;
  Blaslt& blaslt_;
  ContextSettings settings_;
  Plans plans_;
  Proposals proposals_;
  std::optional<PlanSource> source_;
  std::set<std::string> texts_;  // notes of plans, evicted ones included: tapes point to them
  std::size_t plan_limit_ = 4096;
  std::int64_t tick_ = 0;
};

}  // namespace fusegrad::detail
