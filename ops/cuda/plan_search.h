// Finds the best algorithm of a product among candidates: by measurement if that is wanted, and never a wrong one. Not
// installed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include <fusegrad/autograd/cuda/stopwatch.h>
#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/cuda/lt_product.h>
#include <fusegrad/ops/cuda/trial.h>

namespace fusegrad::detail {

/// Enqueues the product with an algorithm on a stream. False if the algorithm does not do it.
using LaunchProduct = std::function<bool(const LtProduct&, const Algorithm&, CUstream_st*)>;

struct SearchResult {
  int chosen = -1;                  ///< index of the algorithm to use; -1: none is right
  std::vector<double> us = {};      ///< of each candidate; negative: refused; empty: not measured
  int rejected = 0;                 ///< candidates that gave wrong results
  std::string_view rejection = {};  ///< what was wrong with the first of those; lives for ever
};

/// Whether candidates are timed. A verified order of preference needs no clock, and repeats from run to run.
enum class Clock : std::uint8_t { stopped, running };

/// Chooses among `candidates`, the preferred one first. With a running clock the fastest is tried before the preferred
/// one if that is worthwhile (plan_order.h). The first that passes verification is chosen. Errors: CudaError.
SearchResult search(const CudaExecution& execution, Stopwatch& stopwatch, Trial& trial,
                    std::span<const Algorithm> candidates, const LaunchProduct& launch, Clock clock);

}  // namespace fusegrad::detail
