#include <algorithm>
#include <numeric>
#include <utility>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/autograd/cuda/stopwatch.h>
#include <fusegrad/ops/cuda/plan_table.h>

namespace fusegrad::detail {
namespace {

/// What tapes say of a plan that has an algorithm.
std::string note_of(const Plan& plan) {
  std::string text = plan.what;
  if (!plan.remark.empty()) text += detail::format(" ({})", plan.remark);
  text += ": " + Blaslt::describe(plan.candidates.front());
  if (plan.origin == PlanOrigin::file) text += ", from a plan file";
  if (plan.measured.empty() || plan.measured.front().us == 0) return text;
  text += detail::format(", {:.1f} us, the best of {}", plan.measured.front().us, plan.measured.size());
  if (plan.measured.size() > 1) text += detail::format(" (next {:.1f} us)", plan.measured[1].us);
  return text;
}

PlanReport report_of(const Plan& plan) {
  PlanReport report{.what = plan.what, .candidates = plan.measured, .origin = plan.origin, .remark = plan.remark};
  if (report.candidates.empty() && !plan.candidates.empty()) {
    report.candidates.push_back({Blaslt::describe(plan.candidates.front())});
  }
  return report;
}

}  // namespace

/// Nothing if there is no memory to try anything in.
std::optional<SearchResult> PlanTable::try_candidates(const CudaExecution& execution, const LtProduct& product,
                                                      Plan& plan, Clock clock) {
  const Aside lines(execution.state);
  const std::unique_ptr<Trial> trial = Trial::make(backend_, product);
  if (!trial) return std::nullopt;
  if (clock == Clock::running) plan.candidates = blaslt_.algorithms(product);
  Stopwatch& stopwatch = execution.state.stopwatch();
  const CudaExecution aside{stopwatch.stream().get(), execution.state};
  const auto run = [&](const LtProduct& operands, const Algorithm& algorithm, CUstream_st* stream) {
    return blaslt_.launch(*plan.problem, operands, algorithm, stream);
  };
  SearchResult result = search(aside, stopwatch, *trial, plan.candidates, run, clock);
  stopwatch.stream().synchronize();
  Counters& counters = execution.state.counters();
  counters.rejected_candidates += result.rejected;
  counters.plans_measured += clock == Clock::running;
  return result;
}

void PlanTable::search_plan(const CudaExecution& execution, const LtProduct& product, Plan& plan, Clock clock) {
  const std::optional<SearchResult> tried = try_candidates(execution, product, plan, clock);
  if (!tried) return;  // the heuristic's choice stays
  const SearchResult& result = *tried;
  const auto us = [&](int index) { return result.us.empty() ? 0 : result.us[static_cast<std::size_t>(index)]; };
  std::vector<int> order(plan.candidates.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](int a, int b) { return std::pair(a != result.chosen, us(a)) < std::pair(b != result.chosen, us(b)); });
  for (const int index : order) {
    if (us(index) < 0) continue;
    plan.measured.push_back({Blaslt::describe(plan.candidates[static_cast<std::size_t>(index)]), us(index)});
  }
  if (result.chosen < 0) {
    plan.candidates.clear();
    plan.measured.clear();
  } else {
    plan.candidates = {plan.candidates[static_cast<std::size_t>(result.chosen)]};
    plan.origin = clock == Clock::running ? PlanOrigin::measured : PlanOrigin::verified;
  }
  if (result.rejected != 0) {
    if (!plan.remark.empty()) plan.remark += "; ";
    plan.remark += detail::format("{} algorithms rejected: {}", result.rejected, result.rejection);
  }
}

/// Gives `plan` the algorithm that a file has for the product. False if there is none, if it is wrong, or if it cannot
/// be verified now.
bool PlanTable::take_proposal(const CudaExecution& execution, const LtProduct& product, Plan& plan) {
  const auto found = proposals_.find(key_of(product));
  if (found == proposals_.end()) return false;
  Proposal& proposal = found->second;
  std::string_view fault = "cuBLASLt does not offer it";
  if (blaslt_.offers(*plan.problem, product, proposal.algorithm)) {
    fault = {};
    if (!proposal.trusted) {
      if (execution.state.capturing()) return false;
      plan.candidates = {proposal.algorithm};
      const std::optional<SearchResult> tried = try_candidates(execution, product, plan, Clock::stopped);
      plan.candidates.clear();
      if (!tried) return false;
      fault = tried->rejection;
      proposal.trusted = fault.empty();
    }
  } else {
    ++execution.state.counters().rejected_candidates;
  }
  if (!fault.empty()) {
    plan.remark = detail::format("the algorithm of the plan file rejected: {}", fault);
    execution.state.warn(detail::format("plan file: the algorithm for {} was rejected: {}", plan.what, fault));
    proposals_.erase(found);
    return false;
  }
  // Should it refuse its first run, the heuristic's have their turn, as they would without the file.
  if (!settings_.deterministic) plan.candidates = blaslt_.heuristic(*plan.problem, product);
  plan.candidates.insert(plan.candidates.begin(), proposal.algorithm);
  plan.measured = proposal.record.candidates;
  plan.measured.front().name = Blaslt::describe(proposal.algorithm);
  plan.origin = PlanOrigin::file;
  ++execution.state.counters().plans_loaded;
  return true;
}

std::unique_ptr<Plan> PlanTable::make_plan(const CudaExecution& execution, const LtProduct& product) {
  auto plan = std::make_unique<Plan>();
  plan->problem = blaslt_.problem_of(product);
  plan->what = to_string(product);
  if (Blaslt::known_bad(product) || take_proposal(execution, product, *plan)) return plan;
  plan->candidates = blaslt_.heuristic(*plan->problem, product);
  if (plan->candidates.empty() || execution.state.capturing()) return plan;
  if (settings_.deterministic) {
    search_plan(execution, product, *plan, Clock::stopped);
  } else if (execution.state.plan_policy() == PlanPolicy::measure) {
    plan->searched = true;
    search_plan(execution, product, *plan, Clock::running);
  }
  return plan;
}

void PlanTable::evict_one() {
  const auto oldest = std::ranges::min_element(
      plans_, [](const auto& a, const auto& b) { return a.second->last_use < b.second->last_use; });
  plans_.erase(oldest);
}

Plan& PlanTable::plan_for(const CudaExecution& execution, const LtProduct& product) {
  Counters& counters = execution.state.counters();
  const PlanKey key = key_of(product);
  const auto found = plans_.find(key);
  // What was chosen by rank is chosen anew by whoever measures.
  const bool measures = execution.state.plan_policy() == PlanPolicy::measure && !settings_.deterministic;
  const auto is_settled = [&](const Plan& plan) {
    return !measures || plan.origin != PlanOrigin::ranked || plan.searched || plan.candidates.empty() ||
           execution.state.capturing();
  };
  if (found != plans_.end() && is_settled(*found->second)) {
    ++counters.plan_hits;
    found->second->last_use = ++tick_;
    return *found->second;
  }
  require<StateError>(!execution.state.stepping() || !execution.state.capturing(),
                      "step: {} was asked for while the step function was captured, and not when it first ran: it does "
                      "not do the same each time",
                      to_string(product));
  std::unique_ptr<Plan> plan = make_plan(execution, product);
  ++counters.plan_misses;
  plan->last_use = ++tick_;
  while (plans_.size() >= plan_limit_) {
    evict_one();
    ++counters.plan_evictions;
  }
  return *plans_.insert_or_assign(key, std::move(plan)).first->second;
}

const std::string* PlanTable::run(const CudaExecution& execution, const LtProduct& product) {
  if (!blaslt_.accepts(product)) return nullptr;
  Plan& plan = plan_for(execution, product);
  while (!plan.candidates.empty()) {
    if (blaslt_.launch(*plan.problem, product, plan.candidates.front(), execution.stream, execution.state.line())) {
      if (!plan.proven) {
        plan.candidates.resize(1);
        plan.candidates.shrink_to_fit();
        plan.proven = true;
        plan.note = &*texts_.insert(note_of(plan)).first;
      }
      ++execution.state.counters().plan_uses;
      return plan.note;
    }
    require<CudaError>(!plan.proven, "cuda: cublasLtMatmul refused {}, which it has run before", plan.what);
    // An algorithm that the heuristic offered may still refuse its first run; then the next one has its turn.
    plan.candidates.erase(plan.candidates.begin());
    plan.measured.clear();
    plan.origin = PlanOrigin::ranked;
  }
  return nullptr;
}

std::vector<PlanReport> PlanTable::reports() const {
  std::vector<PlanReport> all;
  for (const auto& [key, plan] : plans_) all.push_back(report_of(*plan));
  std::ranges::sort(all, {}, &PlanReport::what);
  return all;
}

const PlanSource& PlanTable::source() {
  if (!source_) source_ = plan_source_of(backend_, settings_);
  return *source_;
}

bool PlanTable::has_measured() const {
  return std::ranges::any_of(plans_, [](const auto& plan) { return plan.second->origin == PlanOrigin::measured; });
}

int PlanTable::propose(const std::vector<PlanRecord>& records, bool verify) {
  int taken = 0;
  for (const PlanRecord& record : records) {
    std::optional<Proposal> proposal = proposal_of(record);
    if (!proposal) continue;
    proposal->trusted = !verify && !settings_.deterministic;
    const PlanKey key = *key_of(record);
    const auto made = plans_.find(key);
    if (made != plans_.end() && made->second->origin == PlanOrigin::ranked) plans_.erase(made);
    proposals_.insert_or_assign(key, std::move(*proposal));
    ++taken;
  }
  return taken;
}

std::shared_ptr<PlanTable> make_plan_table(CudaBackend& backend, Blaslt& blaslt, const ContextSettings& settings) {
  return std::make_shared<PlanTable>(backend, blaslt, settings);
}

}  // namespace fusegrad::detail
