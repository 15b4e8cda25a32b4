// What the losses have in common.
#pragma once

#include <cstdint>

namespace fusegrad {

/// How the losses of single rows or elements become the result: their mean, their sum, or each on its own. The mean
/// divides by the number (or weight) of those that count; if none counts, it is 0 with zero gradients.
enum class Reduction : std::uint8_t { mean, sum, none };

}  // namespace fusegrad
