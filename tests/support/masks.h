// ReLU bit masks, read and made bit by bit from the definition in ops/views.h: the oracle for the kernels' fast ways.
#pragma once

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/values.h"

namespace fusegrad::test {

bool mask_bit(const std::uint8_t* mask, std::int64_t cols, std::int64_t i, std::int64_t j);
void flip_mask_bit(std::uint8_t* mask, std::int64_t cols, std::int64_t i, std::int64_t j);

/// The mask of pre-activations z: bits z >= 0, padding bits 0.
std::vector<std::uint8_t> mask_of(const Values& z);

/// Flips every padding bit of a mask: no kernel may notice.
void flip_padding(std::uint8_t* mask, std::int64_t rows, std::int64_t cols);

/// Every bit of `mask` is that of `z`, padding included. Names the first that is not.
testing::AssertionResult is_mask_of(const std::uint8_t* mask, const Values& z);

/// gradient where the mask's bit is 1, else 0.
Values selected(const Values& gradient, const std::vector<std::uint8_t>& mask);

}  // namespace fusegrad::test
