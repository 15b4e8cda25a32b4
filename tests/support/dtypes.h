// Test suites that run once a floating-point dtype:
//   class AddTest : public test::EachDtype {};
//   FUSEGRAD_EACH_DTYPE(AddTest);
//   TEST_P(AddTest, AddsExactly) { ... dtype() ... }
#pragma once

#include <string>

#include <gtest/gtest.h>

#include <fusegrad/autograd/dtype.h>

namespace fusegrad::test {

inline constexpr Dtype kFloatingDtypes[] = {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16};

class EachDtype : public testing::TestWithParam<Dtype> {
 protected:
  static Dtype dtype() { return GetParam(); }
  /// The dtype of sums, losses and parameter gradients.
  static Dtype wide() { return accumulation_dtype(GetParam()); }
};

}  // namespace fusegrad::test

#define FUSEGRAD_EACH_DTYPE(Suite)                                                              \
  INSTANTIATE_TEST_SUITE_P(Dtypes, Suite, testing::ValuesIn(::fusegrad::test::kFloatingDtypes), \
                           [](const auto& each) { return std::string(name_of(each.param)); })
