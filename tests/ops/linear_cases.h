// The ways in which the linear op can run: device, dtype, math mode, fused by each strategy or not.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/device.h"

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/dtype.h>

namespace fusegrad::test {

struct LinearCase {
  DeviceType device = DeviceType::cpu;
  Dtype dtype = Dtype::f32;
  Fusion fusion = Fusion::on;
  Strategy strategy = Strategy::automatic;
  MathMode math = MathMode::fp32;

  /// On the case's device; on a CPU where that is missing, for a test that then skips.
  Context context() const {
    const ContextOptions options{.threads = 2, .fusion = fusion, .math = math, .strategy = strategy};
    return context_on(device == DeviceType::cuda && has_gpu() ? DeviceType::cuda : DeviceType::cpu, options);
  }
  /// The dtype in which an absorbed activation's bias gradient is summed up, before it goes where it belongs.
  Dtype absorbed_bias() const {
    const bool in_epilogue = device == DeviceType::cuda && strategy == Strategy::epilogue;
    return in_epilogue ? dtype : accumulation_dtype(dtype);
  }
  /// The dtype on whose grid operands are exact in this case's products: tf32 keeps f16's mantissa.
  Dtype grid() const { return math == MathMode::tf32 ? Dtype::f16 : dtype; }
  /// True if an absorbed activation gradient costs no pass over memory.
  bool absorbs_in_product() const {
    return fusion == Fusion::on && (device == DeviceType::cpu || strategy != Strategy::pass);
  }
};

/// On a CPU every dtype, fused and not; on a GPU also tf32, and fused by each strategy.
inline std::vector<LinearCase> linear_cases() {
  std::vector<LinearCase> cases;
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (const Fusion fusion : {Fusion::on, Fusion::off}) cases.push_back({.dtype = dtype, .fusion = fusion});
    for (const MathMode math : {MathMode::fp32, MathMode::tf32}) {
      if (math == MathMode::tf32 && dtype != Dtype::f32) continue;
      const LinearCase gpu{.device = DeviceType::cuda, .dtype = dtype, .math = math};
      for (const Strategy strategy : {Strategy::epilogue, Strategy::split, Strategy::pass}) {
        cases.push_back(gpu);
        cases.back().strategy = strategy;
      }
      cases.push_back(gpu);
      cases.back().fusion = Fusion::off;
    }
  }
  return cases;
}

/// "cpu_f32_fused", "cuda_tf32_split".
inline std::string name_of_case(const testing::TestParamInfo<LinearCase>& info) {
  const LinearCase& c = info.param;
  std::string name = to_string(c.device) + "_" + (c.math == MathMode::tf32 ? "tf32" : std::string(name_of(c.dtype)));
  if (c.fusion == Fusion::off) return name + "_unfused";
  return name + "_" + (c.device == DeviceType::cpu ? "fused" : std::string(name_of(c.strategy)));
}

}  // namespace fusegrad::test
