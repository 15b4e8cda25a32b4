// Comparison of results with the fp64 truth: by interval, never by a widened tolerance.
#pragma once

#include <gtest/gtest.h>

#include "tests/support/values.h"

namespace fusegrad::test {

/// Success if `got` lies in [round(ref - tolerance), round(ref + tolerance)], both ends rounded to `dtype`. A NaN
/// passes only where ref is NaN; an infinity only where the interval reaches it; zeros match whatever their sign.
bool within(double got, double ref, double tolerance, Dtype dtype);

/// Every element of `got` is `ref`'s, rounded to `dtype`: tolerance 0.
testing::AssertionResult equal(const Values& got, const Values& ref, Dtype dtype);

/// Every element of `got` is within its own tolerance of `ref`. Names the first that is not, and the largest error.
testing::AssertionResult near(const Values& got, const Values& ref, const Values& tolerance, Dtype dtype);

/// At most `share` of the elements are zero: a comparison of mostly zeros would prove little.
testing::AssertionResult mostly_nonzero(const Values& values, double share = 0.5);

}  // namespace fusegrad::test
