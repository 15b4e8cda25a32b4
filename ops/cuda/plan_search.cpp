#include <fusegrad/ops/cuda/plan_search.h>
#include <fusegrad/ops/plan_order.h>

namespace fusegrad::detail {
namespace {

constexpr double kBudgetUs = 200000;  // for all rounds of one product

/// Times of all candidates.
std::vector<double> measure(const CudaExecution& execution, Stopwatch& stopwatch, Trial& trial,
                            std::span<const Algorithm> candidates, const LaunchProduct& launch) {
  trial.fill(execution);
  std::vector<double> us(candidates.size(), -1);
  std::vector<std::function<void()>> calls;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!launch(trial.product(), candidates[i], execution.stream)) continue;
    places.push_back(i);
    calls.emplace_back([&, i] { launch(trial.product(), candidates[i], execution.stream); });
  }
  stopwatch.stream().synchronize();
  const std::vector<double> times = stopwatch.compare(calls, kBudgetUs, stopwatch.is_cold(trial.bytes()));
  for (std::size_t i = 0; i < places.size(); ++i) us[places[i]] = times[i];
  return us;
}

}  // namespace

SearchResult search(const CudaExecution& execution, Stopwatch& stopwatch, Trial& trial,
                    std::span<const Algorithm> candidates, const LaunchProduct& launch, Clock clock) {
  SearchResult result;
  std::vector<double> ranks(candidates.size(), 0);  // equal: the order stays
  if (clock == Clock::running) result.us = ranks = measure(execution, stopwatch, trial, candidates, launch);
  for (const int index : order_of(ranks)) {
    const Algorithm& algorithm = candidates[static_cast<std::size_t>(index)];
    const std::string_view fault =
        trial.verify(execution, [&](const LtProduct& product) { return launch(product, algorithm, execution.stream); });
    if (fault.empty()) {
      result.chosen = index;
      return result;
    }
    if (result.rejected++ == 0) result.rejection = fault;
  }
  return result;
}

}  // namespace fusegrad::detail
