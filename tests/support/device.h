// Tests that run on each device: a suite of DeviceTest has one instance a device, and the GPU's instances are skipped,
// visibly, where there is no GPU.
//
//   using RowsTest = DeviceTest;
//   INSTANTIATE_TEST_SUITE_P(Each, RowsTest, kDevices, device_name);
//   TEST_P(RowsTest, AreShared) { Tensor x = Tensor::zeros(context(), {4, 3}, Dtype::f32); ... }
#pragma once

#include <optional>
#include <string>

#include <gtest/gtest.h>

#include <fusegrad/autograd/context.h>

namespace fusegrad::test {

inline const auto kDevices = testing::Values(DeviceType::cpu, DeviceType::cuda);

/// True if a GPU context can be made. Errors: CudaError if there is a GPU that fails.
bool has_gpu();

/// A new context on a device. Errors: DeviceError for a GPU where there is none.
Context context_on(DeviceType device, const ContextOptions& options = {});

/// Skips the running test unless `device` is there; to be called by SetUp.
void skip_without(DeviceType device);

/// "cpu" or "cuda".
std::string to_string(DeviceType device);

/// Names the instances of a suite whose parameter is a device.
inline std::string device_name(const testing::TestParamInfo<DeviceType>& info) { return to_string(info.param); }

class DeviceTest : public testing::TestWithParam<DeviceType> {
 protected:
  void SetUp() override { skip_without(GetParam()); }

  /// The test's context, made by the first call.
  const Context& context() {
    if (!context_) context_ = context_on(GetParam());
    return *context_;
  }

 private:
  std::optional<Context> context_;
};

}  // namespace fusegrad::test
