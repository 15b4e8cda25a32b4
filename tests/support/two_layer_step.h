// One training step of two layers, on operands for which every algorithm gives the same bits: what ran shows in the
// context's plans and counters, and never in the numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/values.h"

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/dtype.h>

namespace fusegrad::test {

struct TwoLayerStep {
  std::int64_t batch = 128;
  std::string* explained = nullptr;  ///< where the tape explains what ran; or null
};

/// 64 -> 96 with relu -> 40, forward and backward, `dtype` throughout. Returns the output and the gradients of the
/// input and of both layers' weights and biases.
std::vector<Values> two_layer_step(const Context& context, Dtype dtype, const TwoLayerStep& options = {});

/// Expects equal bits of two such results.
void expect_equal(const std::vector<Values>& results, const std::vector<Values>& expected);

}  // namespace fusegrad::test
