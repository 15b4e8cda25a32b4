// The order in which candidates of a plan are tried: by time, but only where that is worthwhile. Knows neither cuBLASLt
// nor GPUs. Not installed.
#pragma once

#include <span>
#include <vector>

namespace fusegrad::detail {

/// A candidate replaces one that ranks before it only if it is faster by more than this share.
inline constexpr double kWorthwhile = 0.03;

/// Indices of ways that took `us` microseconds (negative: it did not run), in the order in which to try them: those
/// that are worthwhile by the clock, fastest first, then all others as they rank.
std::vector<int> order_of(std::span<const double> us);

}  // namespace fusegrad::detail
