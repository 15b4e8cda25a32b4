#include <algorithm>

#include <fusegrad/ops/cuda/plan_search.h>

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
  const std::vector<double> times = stopwatch.compare(calls, kBudgetUs);
  for (std::size_t i = 0; i < places.size(); ++i) us[places[i]] = times[i];
  return us;
}

}  // namespace

std::vector<int> order_of(std::span<const double> us) {
  std::vector<int> order;
  const auto preferred = std::find_if(us.begin(), us.end(), [](double t) { return t >= 0; });
  if (preferred == us.end()) return order;
  const double bar = *preferred * (1 - kWorthwhile);
  for (std::size_t i = 0; i < us.size(); ++i) {
    if (us[i] >= 0 && us[i] < bar) order.push_back(static_cast<int>(i));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return us[static_cast<std::size_t>(a)] < us[static_cast<std::size_t>(b)]; });
  for (std::size_t i = 0; i < us.size(); ++i) {
    if (us[i] >= bar) order.push_back(static_cast<int>(i));
  }
  return order;
}

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
