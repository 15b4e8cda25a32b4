// Test suites that run once a floating-point dtype:
//   class AddTest : public test::EachDtype {};
//   FUSEGRAD_EACH_DTYPE(AddTest);
//   TEST_P(AddTest, AddsExactly) { ... dtype() ... }
// or once a device and floating-point dtype: EachDevice, FUSEGRAD_EACH_DEVICE and device_context().
#pragma once

#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "tests/support/device.h"

#include <fusegrad/autograd/dtype.h>

namespace fusegrad::test {

inline constexpr Dtype kFloatingDtypes[] = {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16};

class EachDtype : public testing::TestWithParam<Dtype> {
 protected:
  static Dtype dtype() { return GetParam(); }
  /// The dtype of sums, losses and parameter gradients.
  static Dtype wide() { return accumulation_dtype(GetParam()); }
};

class EachDevice : public testing::TestWithParam<std::tuple<DeviceType, Dtype>> {
 protected:
  void SetUp() override { skip_without(device()); }

  static DeviceType device() { return std::get<0>(GetParam()); }
  static Dtype dtype() { return std::get<1>(GetParam()); }
  static Dtype wide() { return accumulation_dtype(dtype()); }
  /// A new context on the device; on the CPU where that is missing, for a test that SetUp then skips.
  static Context device_context(const ContextOptions& options) {
    return context_on(device() == DeviceType::cuda && has_gpu() ? DeviceType::cuda : DeviceType::cpu, options);
  }
};

}  // namespace fusegrad::test

#define FUSEGRAD_EACH_DTYPE(Suite)                                                              \
  INSTANTIATE_TEST_SUITE_P(Dtypes, Suite, testing::ValuesIn(::fusegrad::test::kFloatingDtypes), \
                           [](const auto& each) { return std::string(name_of(each.param)); })

#define FUSEGRAD_EACH_DEVICE(Suite)                                                                       \
  INSTANTIATE_TEST_SUITE_P(                                                                               \
      Devices, Suite,                                                                                     \
      testing::Combine(::fusegrad::test::kDevices, testing::ValuesIn(::fusegrad::test::kFloatingDtypes)), \
      [](const auto& each) {                                                                              \
        return ::fusegrad::test::to_string(std::get<0>(each.param)) + "_" +                               \
               std::string(name_of(std::get<1>(each.param)));                                             \
      })
