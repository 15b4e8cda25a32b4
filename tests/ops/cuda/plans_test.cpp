// How algorithms and strategies are chosen on a GPU: by rank or by measurement, and never a wrong one.
#include <functional>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tests/support/device.h"
#include "tests/support/two_layer_step.h"

#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/fusegrad.h>
#include <fusegrad/ops/cuda/blaslt.h>
#include <fusegrad/ops/cuda/plan_table.h>
#include <fusegrad/ops/cuda/trial.h>

namespace fusegrad {
namespace {

using detail::Algorithm;
using detail::Epilogue;
using detail::LtProduct;
using kernels::Transpose;

/// An address that no one reads, aligned to 256 bytes: a trial looks only at the alignment.
void* somewhere() { return reinterpret_cast<void*>(std::uintptr_t{256}); }

constexpr bool has_bias(Epilogue e) {
  return e == Epilogue::bias || e == Epilogue::relu_bias || e == Epilogue::relu_aux_bias || e == Epilogue::gelu_bias ||
         e == Epilogue::gelu_aux_bias;
}
constexpr bool has_bias_gradient(Epilogue e) {
  return e == Epilogue::drelu_bgrad || e == Epilogue::dgelu_bgrad || e == Epilogue::bgradb;
}
constexpr bool is_gelu_matrix(Epilogue e) {
  return e == Epilogue::gelu_aux || e == Epilogue::gelu_aux_bias || e == Epilogue::dgelu || e == Epilogue::dgelu_bgrad;
}

enum class Adds : std::uint8_t { nothing, c, d };

/// A product as the library makes it: forward and dx untransposed or with w transposed, dw with a transposed and a wide
/// result. m x n outputs, sums of k terms.
LtProduct product_of(Epilogue epilogue, Dtype dtype, std::int64_t m, std::int64_t n, std::int64_t k, Adds adds) {
  const bool weight_gradient = epilogue == Epilogue::bgradb;
  const bool forward = !detail::is_backward(epilogue) && epilogue != Epilogue::none;
  const auto matrix = [](std::int64_t rows, std::int64_t cols, Dtype type) {
    return ConstMatrix{somewhere(), rows, cols, cols, type};
  };
  const Dtype out = weight_gradient ? accumulation_dtype(dtype) : dtype;
  LtProduct product{.a = weight_gradient ? matrix(k, m, dtype) : matrix(m, k, dtype),
                    .transpose_a = weight_gradient ? Transpose::yes : Transpose::no,
                    .b = forward ? matrix(n, k, dtype) : matrix(k, n, dtype),
                    .transpose_b = forward ? Transpose::yes : Transpose::no,
                    .d = {somewhere(), m, n, n, out},
                    .epilogue = epilogue};
  if (adds == Adds::d) product.c = product.d;
  if (adds == Adds::c) product.c = {static_cast<std::byte*>(somewhere()) + 256, m, n, n, out};
  if (has_bias(epilogue)) product.bias = somewhere();
  if (has_bias_gradient(epilogue)) product.bias_gradient = somewhere();
  if (detail::is_relu_mask(epilogue)) {
    product.saved = somewhere();
    product.saved_ld = mask_row_bytes(n) * 8;
  } else if (is_gelu_matrix(epilogue)) {
    product.saved = somewhere();
    product.saved_ld = (n + 7) / 8 * 8;
  }
  return product;
}

constexpr Epilogue kAll[] = {Epilogue::none,     Epilogue::bias,          Epilogue::relu,  Epilogue::relu_bias,
                             Epilogue::relu_aux, Epilogue::relu_aux_bias, Epilogue::gelu,  Epilogue::gelu_bias,
                             Epilogue::gelu_aux, Epilogue::gelu_aux_bias, Epilogue::drelu, Epilogue::drelu_bgrad,
                             Epilogue::dgelu,    Epilogue::dgelu_bgrad,   Epilogue::bgradb};

class CudaPlansTest : public testing::Test {
 protected:
  void SetUp() override { test::skip_without(DeviceType::cuda); }

  static Context context_for(MathMode math = MathMode::fp32) {
    return test::context_on(test::has_gpu() ? DeviceType::cuda : DeviceType::cpu, {.math = math});
  }

  Context context = context_for();

  detail::CudaState& state() const { return *context.state().cuda(); }
  detail::Blaslt& blaslt() const { return state().blaslt(); }
  CudaExecution execution() const { return {state().stream(), state()}; }

  /// What verification says of an algorithm, run by `launch`.
  std::string verdict(const LtProduct& like, const std::function<bool(const LtProduct&)>& launch) const {
    const auto trial = detail::Trial::make(state().backend(), like);
    EXPECT_TRUE(trial);
    return trial ? std::string(trial->verify(execution(), launch)) : "no memory";
  }
};

// Verification.

struct Precision {
  const char* name;
  Dtype dtype;
  MathMode math;
};

class EveryAlgorithmTest : public testing::TestWithParam<Precision> {
 protected:
  void SetUp() override { test::skip_without(DeviceType::cuda); }
};
INSTANTIATE_TEST_SUITE_P(cuda, EveryAlgorithmTest,
                         testing::Values(Precision{"f64", Dtype::f64, MathMode::fp32},
                                         Precision{"f32", Dtype::f32, MathMode::fp32},
                                         Precision{"tf32", Dtype::f32, MathMode::tf32},
                                         Precision{"bf16", Dtype::bf16, MathMode::fp32},
                                         Precision{"f16", Dtype::f16, MathMode::fp32}),
                         [](const auto& info) { return info.param.name; });

TEST_P(EveryAlgorithmTest, GivesTheResultOfTheUnfusedDefinition) {
  const Context context = test::context_on(DeviceType::cuda, {.math = GetParam().math});
  detail::CudaState& state = *context.state().cuda();
  const CudaExecution execution{state.stream(), state};
  struct Shape {
    std::int64_t m, n, k;
  };
  int candidates = 0;
  for (const Shape& s : {Shape{1, 1, 1},
                         {2, 3, 1},
                         {8, 1, 129},
                         {7, 9, 33},
                         {64, 64, 64},
                         {128, 16, 512},
                         {129, 130, 131},
                         {256, 512, 64},
                         {1000, 72, 200},
                         {512, 1024, 256}}) {
    for (const Epilogue epilogue : kAll) {
      for (const Adds adds : {Adds::nothing, Adds::c, Adds::d}) {
        if (adds != Adds::nothing && !detail::is_backward(epilogue) && epilogue != Epilogue::none) continue;
        const LtProduct like = product_of(epilogue, GetParam().dtype, s.m, s.n, s.k, adds);
        const std::vector<Algorithm> algorithms = state.blaslt().algorithms(like);
        const auto trial = detail::Trial::make(state.backend(), like);
        ASSERT_TRUE(trial);
        for (const Algorithm& algorithm : algorithms) {
          bool ran = true;
          const std::string_view fault = trial->verify(execution, [&](const LtProduct& product) {
            return ran = state.blaslt().launch(product, algorithm, execution.stream);
          });
          if (!ran) continue;
          ++candidates;
          EXPECT_EQ(fault, "") << to_string(like) << ", " << detail::Blaslt::describe(algorithm);
        }
      }
    }
  }
  // Five precisions make more than 2000.
  EXPECT_GE(candidates, 400);
  RecordProperty("candidates", candidates);
  std::printf("%s: %d candidates verified\n", GetParam().name, candidates);
}

TEST_P(EveryAlgorithmTest, GivesTheSameBitsWhereItLeavesMultiprocessorsToOtherWork) {
  const Context context = test::context_on(DeviceType::cuda, {.math = GetParam().math});
  detail::CudaState& state = *context.state().cuda();
  const CudaExecution execution{state.stream(), state};
  int compared = 0;
  for (const Epilogue epilogue : {Epilogue::none, Epilogue::drelu_bgrad, Epilogue::bgradb}) {
    // More tiles than there are multiprocessors.
    const auto trial =
        detail::Trial::make(state.backend(), product_of(epilogue, GetParam().dtype, 4096, 2048, 512, Adds::nothing));
    ASSERT_TRUE(trial);
    trial->fill(execution);
    const LtProduct& product = trial->product();
    std::vector<std::byte> bytes(static_cast<std::size_t>(product.d.rows * product.d.ld) * size_of(product.d.dtype));
    /// What `algorithm` makes; empty if it does not do the product.
    const auto result = [&](const Algorithm& algorithm, double spare) {
      LtProduct sparing = product;
      sparing.spare = spare;
      EXPECT_EQ(cudaMemsetAsync(product.d.data, 0xFF, bytes.size(), execution.stream), cudaSuccess);
      if (!state.blaslt().launch(sparing, algorithm, execution.stream)) return std::vector<std::byte>();
      context.synchronize();
      EXPECT_EQ(cudaMemcpy(bytes.data(), product.d.data, bytes.size(), cudaMemcpyDeviceToHost), cudaSuccess);
      return bytes;
    };
    for (const Algorithm& algorithm : state.blaslt().algorithms(product)) {
      const std::vector<std::byte> whole = result(algorithm, 0);
      if (whole.empty()) continue;
      for (const double spare : {1.0 / 11, 5.0 / 33, 0.5}) {
        EXPECT_TRUE(result(algorithm, spare) == whole)
            << to_string(product) << ", " << detail::Blaslt::describe(algorithm) << ", " << spare;
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 9);
}

TEST_F(CudaPlansTest, VerificationFindsTheKnownFaultByItself) {
  // f16 with one input feature: cuBLASLt 13.1 leaves the bias gradient unwritten or wrong.
  int wrong = 0;
  for (const std::int64_t out : {2, 8, 33, 264}) {
    for (const std::int64_t batch : {64, 129, 4100}) {
      LtProduct like = product_of(Epilogue::bgradb, Dtype::f16, out, 1, batch, Adds::nothing);
      like.d.dtype = Dtype::f16;  // with a result in f32 it is right
      EXPECT_TRUE(blaslt().algorithms(like).empty()) << "the table of known faults lets it through";
      for (const Algorithm& algorithm : blaslt().algorithms(like, true)) {
        const std::string fault = verdict(
            like, [&](const LtProduct& product) { return blaslt().launch(product, algorithm, execution().stream); });
        if (!fault.empty() && fault != "it was refused") ++wrong;
      }
    }
  }
  EXPECT_GT(wrong, 0) << "this version of cuBLASLt may have no such fault any more";
}

TEST_F(CudaPlansTest, TheSmallBf16CaseIsNoFault) {
  // DRELU_BGRAD of 8 rows, 1 feature and sums of 129 once gave a bias gradient that was off by 5 %: on exact operands
  // every algorithm is right, so that was a sum of rounded terms near zero.
  const LtProduct like = product_of(Epilogue::drelu_bgrad, Dtype::bf16, 8, 1, 129, Adds::nothing);
  const std::vector<Algorithm> algorithms = blaslt().algorithms(like);
  ASSERT_FALSE(algorithms.empty());
  for (const Algorithm& algorithm : algorithms) {
    EXPECT_EQ(
        verdict(like,
                [&](const LtProduct& product) { return blaslt().launch(product, algorithm, execution().stream); }),
        "")
        << detail::Blaslt::describe(algorithm);
  }
}

// Planted faults: a right algorithm, and something that spoils its result or its operands.

class PlantedFaultTest : public CudaPlansTest {
 protected:
  std::string verdict_of(const LtProduct& like, const std::function<void(LtProduct&)>& before,
                         const std::function<void(const LtProduct&)>& after) const {
    const std::vector<Algorithm> algorithms = blaslt().algorithms(like);
    EXPECT_FALSE(algorithms.empty());
    return verdict(like, [&](const LtProduct& product) {
      LtProduct spoiled = product;
      if (before) before(spoiled);
      const bool ran = blaslt().launch(spoiled, algorithms.front(), execution().stream);
      if (after) after(product);
      return ran;
    });
  }
};

TEST_F(PlantedFaultTest, NoneIsRight) {
  const LtProduct like = product_of(Epilogue::drelu_bgrad, Dtype::bf16, 200, 300, 64, Adds::c);
  EXPECT_EQ(verdict_of(like, {}, {}), "");
}

TEST_F(PlantedFaultTest, ADroppedTileOfTheBiasGradientIsRejected) {
  const LtProduct like = product_of(Epilogue::drelu_bgrad, Dtype::f32, 200, 300, 64, Adds::nothing);
  EXPECT_EQ(verdict_of(like, {},
                       [&](const LtProduct& product) {
                         // The last columns lack what the last rows add.
                         auto* last = static_cast<float*>(product.bias_gradient) + product.d.cols - 44;
                         ASSERT_EQ(cudaMemsetAsync(last, 0, 44 * sizeof(float), execution().stream), cudaSuccess);
                       }),
            "the bias gradient is wrong");
}

TEST_F(PlantedFaultTest, TheMaskOfAnotherColumnIsRejected) {
  const LtProduct like = product_of(Epilogue::drelu, Dtype::bf16, 200, 300, 64, Adds::nothing);
  EXPECT_EQ(
      verdict_of(like, [](LtProduct& product) { product.saved = static_cast<std::byte*>(product.saved) + 16; }, {}),
      "the output is wrong");
}

TEST_F(PlantedFaultTest, AForgottenContributionIsRejected) {
  const LtProduct like = product_of(Epilogue::drelu, Dtype::bf16, 200, 300, 64, Adds::c);
  EXPECT_EQ(verdict_of(like, [](LtProduct& product) { product.c = {}; }, {}), "the output is wrong");
}

TEST_F(PlantedFaultTest, WritingPastTheRowsIsRejected) {
  LtProduct like = product_of(Epilogue::none, Dtype::f32, 64, 48, 64, Adds::nothing);
  like.d.ld = 64;
  EXPECT_EQ(verdict_of(like, {},
                       [&](const LtProduct& product) {
                         auto* beside = static_cast<float*>(product.d.data) + 3 * product.d.ld + product.d.cols;
                         ASSERT_EQ(cudaMemsetAsync(beside, 0, sizeof(float), execution().stream), cudaSuccess);
                       }),
            "it writes outside its output");
}

TEST_F(PlantedFaultTest, AnUnwrittenElementIsRejected) {
  const LtProduct like = product_of(Epilogue::relu_aux_bias, Dtype::f16, 65, 130, 32, Adds::nothing);
  EXPECT_EQ(verdict_of(like, {},
                       [&](const LtProduct& product) {
                         ASSERT_EQ(cudaMemsetAsync(product.saved, 0, 1, execution().stream), cudaSuccess);
                         ASSERT_EQ(cudaMemsetAsync(product.d.data, 0xFF, 2, execution().stream), cudaSuccess);
                       }),
            "the output is wrong");
}

TEST_F(PlantedFaultTest, AWrongMaskBitIsRejected) {
  const LtProduct like = product_of(Epilogue::relu_aux_bias, Dtype::f16, 65, 130, 32, Adds::nothing);
  EXPECT_EQ(verdict_of(like, {},
                       [&](const LtProduct& product) {
                         ASSERT_EQ(cudaMemsetAsync(product.saved, 0, 4, execution().stream), cudaSuccess);
                       }),
            "what is saved for backward is wrong");
}

// Choice.

TEST_F(CudaPlansTest, MeasuredStepsGiveTheSameNumbersAndAreMeasuredOnce) {
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    SCOPED_TRACE(name_of(dtype));
    const Context measured = Context::cuda({.plans = PlanPolicy::measure});
    std::string text;
    const auto expected = test::two_layer_step(Context::cuda(), dtype);
    const auto first = test::two_layer_step(measured, dtype, {.explained = &text});
    test::expect_equal(first, expected);
    const Counters after = measured.counters();
    EXPECT_GT(after.plans_measured, 0);
    EXPECT_EQ(after.rejected_candidates, 0);
    EXPECT_NE(text.find("measured"), std::string::npos) << text;
    EXPECT_NE(text.find(" us, the best of "), std::string::npos) << text;
    test::expect_equal(test::two_layer_step(measured, dtype), expected);
    EXPECT_EQ(measured.counters().plans_measured, after.plans_measured);
    EXPECT_EQ(measured.counters().plan_misses, after.plan_misses);
    EXPECT_GT(measured.counters().plan_hits, after.plan_hits);
  }
}

TEST_F(CudaPlansTest, ForwardStepsAreMeasuredWhereSumsLoseNothingInMemory) {
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    SCOPED_TRACE(name_of(dtype));
    const Context measured = Context::cuda({.plans = PlanPolicy::measure});
    std::string text;
    test::two_layer_step(measured, dtype, {.explained = &text});
    int forwards = 0;
    for (const PlanReport& report : plans(measured)) {
      if (!report.what.starts_with("forward step, relu 128 x 96 x 64 ")) continue;
      ++forwards;
      ASSERT_EQ(report.candidates.size(), 2U);
      EXPECT_GT(report.candidates.front().us, 0);
      EXPECT_GT(report.candidates.back().us, 0);
      EXPECT_NE(text.find("y: " + report.candidates.front().name + "; measured: "), std::string::npos) << text;
    }
    EXPECT_EQ(forwards, size_of(dtype) == 2 ? 0 : 1);
  }
}

TEST_F(CudaPlansTest, DeterministicContextsTimeNothingAndVerify) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    const Context first = Context::cuda({.plans = PlanPolicy::measure, .deterministic = true});
    const auto expected = test::two_layer_step(first, dtype);
    EXPECT_EQ(first.counters().plans_measured, 0);
    EXPECT_EQ(first.counters().rejected_candidates, 0);
    for (int repeat = 0; repeat < 20; ++repeat) {
      const Context again = Context::cuda({.plans = PlanPolicy::measure, .deterministic = true});
      test::expect_equal(test::two_layer_step(again, dtype), expected);
      if (HasFailure()) return;  // one difference says it all
    }
  }
}

TEST_F(CudaPlansTest, TooManyPlansEvictTheOldest) {
  state().plan_table().set_plan_limit(3);
  const auto expected = test::two_layer_step(Context::cuda(), Dtype::f32);
  for (int repeat = 0; repeat < 2; ++repeat) {
    test::expect_equal(test::two_layer_step(context, Dtype::f32), expected);
  }
  EXPECT_GT(context.counters().plan_evictions, 0);
}

TEST_F(CudaPlansTest, NothingIsMeasuredDuringACapture) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  {
    const Context own = Context::cuda({.stream = stream, .plans = PlanPolicy::measure});
    EXPECT_FALSE(own.state().cuda()->capturing());
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_TRUE(own.state().cuda()->capturing());
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cudaGraphDestroy(graph);
  }
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace fusegrad
