// The GPU's fused affine map at the level of its kernels: every epilogue and strategy against fp64 truth, exactly, on
// the whole grid of shapes; what happens where cuBLASLt has no algorithm; products that are cut because they are large.
//
// Fills are integers, thinned so that every sum, and every value that is stored in 16 bits, is exact: the tolerance is
// 0 in every dtype, whatever the order of summation.
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/device.h"
#include "tests/support/fills.h"
#include "tests/support/gemm_shapes.h"
#include "tests/support/guarded.h"
#include "tests/support/masks.h"
#include "tests/support/matching.h"
#include "tests/support/on_device.h"
#include "tests/support/tolerance.h"

#include <fusegrad/ops/cuda/blaslt.h>
#include <fusegrad/ops/cuda/linear_ways.h>
#include <fusegrad/ops/dispatch.h>
#include <fusegrad/ops/linear_kernels.h>

namespace fusegrad::test {
namespace {

using detail::Epilogue;

constexpr std::uint64_t kSeed = 20250302;

/// A dtype and how its products are computed.
struct Precision {
  std::string_view name;
  Dtype dtype;
  MathMode math = MathMode::fp32;

  Dtype wide() const { return accumulation_dtype(dtype); }
};
constexpr Precision kPrecisions[] = {{"f64", Dtype::f64},
                                     {"f32", Dtype::f32},
                                     {"tf32", Dtype::f32, MathMode::tf32},
                                     {"bf16", Dtype::bf16},
                                     {"f16", Dtype::f16}};
constexpr Strategy kStrategies[] = {Strategy::epilogue, Strategy::split, Strategy::pass};

double relu(double z) { return z < 0 ? 0 : z; }

/// Layouts as a shape's number has it: tight and aligned, padded rows, pointers off by an element.
Layout layout_of(std::size_t index) {
  return {.padding = static_cast<std::int64_t>(index % 3), .offset = static_cast<std::int64_t>(index / 3 % 3)};
}

/// One layer's operands and the exact results.
struct Layer {
  GemmShape shape;
  Values x, w, b, dz, c_dx, c_dw, c_bias_n, c_bias_k;
  std::vector<std::uint8_t> mask;  // [m, k]

  explicit Layer(const GemmShape& shape, std::uint64_t seed) : shape(shape) {
    const auto [m, n, k] = shape;
    // |z| <= 2 * 60 + 2 and |dx + c| <= 2 * 60 + 2 are exact in bf16; so are sums of 100 of them in f32 and f64.
    x = thinned_integers(m, k, seed, 2, 60, 200);
    w = integers(n, k, seed + 1, 1);
    b = integers(1, n, seed + 2, 2);
    dz = thinned_integers(m, n, seed + 3, 2, 60, 200);
    c_dx = integers(m, k, seed + 4, 2);
    c_dw = integers(n, k, seed + 5, 2);
    c_bias_n = integers(1, n, seed + 6, 2);
    c_bias_k = integers(1, k, seed + 7, 2);
    mask = mask_of(integers(m, k, seed + 8, 2));
  }
};

/// The fixtures' contexts live as long as the program: each holds a workspace and its plans.
Context context_for(const Precision& precision, Strategy strategy) {
  static std::map<std::pair<MathMode, Strategy>, Context> contexts;
  const std::pair key(precision.math, strategy);
  const auto found = contexts.find(key);
  if (found != contexts.end()) return found->second;
  return contexts.emplace(key, Context::cuda({.threads = 1, .math = precision.math, .strategy = strategy}))
      .first->second;
}

detail::Blaslt& blaslt_of(const Context& context) { return context.state().cuda()->blaslt(); }

GuardedBytes bytes_of(const std::vector<std::uint8_t>& values) {
  GuardedBytes bytes(static_cast<std::int64_t>(values.size()), 0);
  std::copy(values.begin(), values.end(), bytes.data());
  return bytes;
}

/// Valid bits only: what cuBLASLt leaves in the padding is not specified.
testing::AssertionResult has_bits_of(const GuardedBytes& mask, const Values& z) {
  for (std::int64_t i = 0; i < z.rows; ++i)
    for (std::int64_t j = 0; j < z.cols; ++j) {
      if (mask_bit(mask.data(), z.cols, i, j) != (z.at(i, j) >= 0))
        return testing::AssertionFailure() << "bit (" << i << ", " << j << ") of " << z.rows << " x " << z.cols;
    }
  return testing::AssertionSuccess();
}

class CudaLinearTest : public testing::Test {
 protected:
  void SetUp() override { skip_without(DeviceType::cuda); }
};

/// Calls f(layer, precision, strategy, layout) for the whole grid.
void for_each_case(auto f) {
  const std::vector<GemmShape> shapes = gemm_shapes(kSeed);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    SCOPED_TRACE(to_string(shapes[i]) + " seed " + std::to_string(kSeed + 10 * i));
    f(Layer(shapes[i], kSeed + 10 * i), layout_of(i));
    if (testing::Test::HasFailure()) return;
  }
}

// Forward.

struct ForwardTruth {
  Values product;
  Values z;  // with bias
};

void expect_forward(const Context& context, const Precision& precision, const Layer& layer, const ForwardTruth& truth,
                    const Layout& layout) {
  const Dtype dtype = precision.dtype;
  GuardedMatrix x(dtype, layer.x, layout), w(dtype, layer.w, layout), b(dtype, layer.b, layout);
  const auto expect = [&](Activation activation, bool with_bias, bool training, bool pass) {
    SCOPED_TRACE(std::string(name_of(activation)) + (with_bias ? ", bias" : "") + (training ? ", mask" : "") +
                 (pass ? ", pass" : ""));
    const Values& z = with_bias ? truth.z : truth.product;
    GuardedMatrix y(dtype, z.rows, z.cols, layout);
    GuardedBytes mask(mask_bytes(z.rows, z.cols), 0xA5);
    OnDevice at(context);
    const CudaExecution execution{context.state().cuda()->stream(), *context.state().cuda()};
    const kernels::FusedResult result = kernels::run_forward(execution,
                                                             {.x = at.matrix(x),
                                                              .w = at.matrix(w),
                                                              .b = with_bias ? at.vector(b) : Vector(),
                                                              .y = at.matrix(y),
                                                              .activation = activation,
                                                              .mask = training ? at.bytes(mask) : nullptr},
                                                             {.pass = pass});
    at.fetch();
    EXPECT_TRUE(equal(y.values(), activation == Activation::relu ? z.map(relu) : z, dtype));
    EXPECT_TRUE(y.intact() && mask.intact());
    if (training) {
      EXPECT_TRUE(has_bits_of(mask, z));
    }
    if (pass && z.rows * z.cols != 0) {
      EXPECT_FALSE(result.fused);
    }
  };
  for (const bool with_bias : {false, true}) {
    expect(Activation::none, with_bias, false, false);
    for (const bool training : {false, true}) {
      for (const bool pass : {false, true}) expect(Activation::relu, with_bias, training, pass);
    }
  }
}

TEST_F(CudaLinearTest, ForwardIsExactInEveryPrecision) {
  for_each_case([](const Layer& layer, const Layout& layout) {
    ForwardTruth truth{.product = product(layer.x, transposed(layer.w)), .z = {}};
    truth.z = plus_row(truth.product, layer.b);
    for (const Precision& precision : kPrecisions) {
      SCOPED_TRACE(precision.name);
      expect_forward(context_for(precision, Strategy::automatic), precision, layer, truth, layout);
    }
  });
}

// Backward.

void expect_input_gradient(const Context& context, const Precision& precision, const Layer& layer, const Values& plain,
                           const Layout& layout) {
  const Dtype dtype = precision.dtype;
  const Dtype wide = precision.wide();
  const bool split = context.strategy() == Strategy::split;
  const bool in_epilogue = context.strategy() == Strategy::epilogue && layer.dz.cols != 0;
  const Dtype made = in_epilogue ? dtype : wide;  // the dtype in which the bias gradient is made
  GuardedMatrix dz(dtype, layer.dz, layout), w(dtype, layer.w, layout), c(dtype, layer.c_dx, layout);
  GuardedBytes mask = bytes_of(layer.mask);
  const auto run = [&](GuardedMatrix& dx, bool add, bool in_place, GuardedMatrix* bias, GuardedMatrix* bias_c) {
    OnDevice at(context);
    const kernels::FusedResult result = dispatch(context, [&](const auto& execution) {
      return kernels::linear_input_gradient(execution, {.dz = at.matrix(dz),
                                                        .w = at.matrix(w),
                                                        .c = in_place ? at.matrix(dx)
                                                             : add    ? at.matrix(c)
                                                                      : Matrix(),
                                                        .dx = at.matrix(dx),
                                                        .activation = Activation::relu,
                                                        .mask = at.bytes(mask),
                                                        .bias = bias ? at.vector(*bias) : Vector(),
                                                        .bias_c = bias_c ? at.vector(*bias_c) : Vector()});
    });
    at.fetch();
    EXPECT_TRUE(dx.intact() && mask.intact());
    return result;
  };
  const Values masked = selected(plain, layer.mask);
  const Values added = selected(sum(plain, layer.c_dx), layer.mask);

  GuardedMatrix dx(dtype, plain.rows, plain.cols, layout);
  run(dx, false, false, nullptr, nullptr);
  EXPECT_TRUE(equal(dx.values(), masked, dtype)) << "without bias";

  dx.poison();
  GuardedMatrix bias(wide, 1, plain.cols, layout);
  const bool made_bias = run(dx, false, false, &bias, nullptr).bias_gradient;
  EXPECT_EQ(made_bias, !split || layer.dz.cols == 0);
  EXPECT_TRUE(equal(dx.values(), masked, dtype)) << "with bias";
  if (made_bias) {
    EXPECT_TRUE(equal(bias.values(), on_grid(column_sums(masked), made), wide));
  }

  // c elsewhere, and the bias gradient added to what there is.
  dx.poison();
  bias.fill(layer.c_bias_k);
  run(dx, true, false, &bias, &bias);
  EXPECT_TRUE(equal(dx.values(), added, dtype)) << "with c";
  const Values total = sum(on_grid(column_sums(added), made), layer.c_bias_k);
  EXPECT_TRUE(equal(bias.values(), made_bias ? total : layer.c_bias_k, wide)) << "accumulated bias";
  EXPECT_TRUE(equal(c.values(), layer.c_dx, dtype)) << "c was changed";

  dx.fill(layer.c_dx);
  run(dx, true, true, nullptr, nullptr);
  EXPECT_TRUE(equal(dx.values(), added, dtype)) << "in place";
  EXPECT_TRUE(bias.intact() && c.intact());
}

TEST_F(CudaLinearTest, InputGradientIsExactInEveryPrecisionAndStrategy) {
  for_each_case([](const Layer& layer, const Layout& layout) {
    const Values plain = product(layer.dz, layer.w);
    for (const Precision& precision : kPrecisions)
      for (const Strategy strategy : kStrategies) {
        SCOPED_TRACE(std::string(precision.name) + " " + std::string(name_of(strategy)));
        expect_input_gradient(context_for(precision, strategy), precision, layer, plain, layout);
      }
  });
}

void expect_weight_gradient(const Context& context, const Precision& precision, const Layer& layer, const Values& plain,
                            const Layout& layout) {
  const Dtype wide = precision.wide();
  GuardedMatrix dz(precision.dtype, layer.dz, layout), x(precision.dtype, layer.x, layout);
  GuardedMatrix c(wide, layer.c_dw, layout), dw(wide, plain.rows, plain.cols, layout);
  GuardedMatrix bias(wide, 1, layer.dz.cols, layout);
  const auto run = [&](bool add, bool with_bias, bool accumulate) {
    OnDevice at(context);
    const kernels::FusedResult result = dispatch(context, [&](const auto& execution) {
      return kernels::linear_weight_gradient(execution, {.dz = at.matrix(dz),
                                                         .x = at.matrix(x),
                                                         .c = add ? at.matrix(c) : Matrix(),
                                                         .dw = at.matrix(dw),
                                                         .bias = with_bias ? at.vector(bias) : Vector(),
                                                         .bias_c = accumulate ? at.vector(bias) : Vector()});
    });
    at.fetch();
    EXPECT_TRUE(dw.intact() && bias.intact() && c.intact());
    EXPECT_TRUE(result.bias_gradient);
  };
  const Values sums = column_sums(layer.dz);
  run(false, false, false);
  EXPECT_TRUE(equal(dw.values(), plain, wide)) << "without bias";

  dw.poison();
  run(false, true, false);
  EXPECT_TRUE(equal(dw.values(), plain, wide));
  EXPECT_TRUE(equal(bias.values(), sums, wide)) << "bias";

  dw.poison();
  bias.fill(layer.c_bias_n);
  run(true, true, true);
  EXPECT_TRUE(equal(dw.values(), sum(plain, layer.c_dw), wide)) << "with c";
  EXPECT_TRUE(equal(bias.values(), sum(sums, layer.c_bias_n), wide)) << "accumulated bias";
}

TEST_F(CudaLinearTest, WeightGradientIsExactInEveryPrecisionAndStrategy) {
  for_each_case([](const Layer& layer, const Layout& layout) {
    const Values plain = product(transposed(layer.dz), layer.x);
    for (const Precision& precision : kPrecisions)
      for (const Strategy strategy : {Strategy::automatic, Strategy::pass}) {
        SCOPED_TRACE(std::string(precision.name) + " " + std::string(name_of(strategy)));
        expect_weight_gradient(context_for(precision, strategy), precision, layer, plain, layout);
      }
  });
}

// GELU: within the bound of its epilogue.

TEST_F(CudaLinearTest, GeluFollowsTheTanhFormForwardAndBackward) {
  constexpr std::int64_t m = 48, n = 40, k = 72;
  for (const Precision& precision : {kPrecisions[0], kPrecisions[1], kPrecisions[3], kPrecisions[4]})
    for (const Strategy strategy : kStrategies) {
      SCOPED_TRACE(std::string(precision.name) + " " + std::string(name_of(strategy)));
      const Dtype dtype = precision.dtype;
      const Context context = context_for(precision, strategy);
      // z is a small multiple of 1/4: exact, so that what remains is the activation's own error.
      const Values x = thinned_integers(m, k, kSeed, 2, 3, 20);
      const Values w = integers(n, k, kSeed + 1, 1).map([](double v) { return v / 4; });
      const Values z = product(x, transposed(w));
      const auto gelu_of = [](double v) {
        return 0.5 * v * (1 + std::tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v)));
      };
      const auto slope_of = [](double v) {
        const double t = std::tanh(0.79788456080286535588 * (v + 0.044715 * v * v * v));
        return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * 0.79788456080286535588 * (1 + 3 * 0.044715 * v * v);
      };
      GuardedMatrix gx(dtype, x), gw(dtype, w), y(dtype, m, n), pre(dtype, m, n);
      {
        OnDevice at(context);
        dispatch(context, [&](const auto& execution) {
          kernels::linear_forward(execution, {.x = at.matrix(gx),
                                              .w = at.matrix(gw),
                                              .y = at.matrix(y),
                                              .activation = Activation::gelu_tanh,
                                              .pre_activation = at.matrix(pre)});
        });
        at.fetch();
      }
      EXPECT_TRUE(equal(pre.values(), z, dtype));
      const Values value = z.map(gelu_of);
      const Values value_tolerance =
          z.zip(value, [&](double at_z, double v) { return gelu(at_z, v, 0, dtype) + epilogue_gelu(at_z, 0, dtype); });
      EXPECT_TRUE(near(y.values(), value, value_tolerance, dtype));

      const Values dz = thinned_integers(m, 8, kSeed + 2, 2, 4, 40), v = integers(8, n, kSeed + 3, 1);
      const Values g = product(dz, v);
      const Values expected = g.zip(z, [&](double gradient, double at_z) { return gradient * slope_of(at_z); });
      GuardedMatrix gdz(dtype, dz), gv(dtype, v), dx(dtype, m, n), bias(precision.wide(), 1, n);
      {
        OnDevice at(context);
        dispatch(context, [&](const auto& execution) {
          kernels::linear_input_gradient(execution, {.dz = at.matrix(gdz),
                                                     .w = at.matrix(gv),
                                                     .dx = at.matrix(dx),
                                                     .activation = Activation::gelu_tanh,
                                                     .pre_activation = at.matrix(pre),
                                                     .bias = at.vector(bias)});
        });
        at.fetch();
      }
      const Values tolerance = g.zip(z, [&](double gradient, double at_z) {
        return gelu_gradient(gradient, slope_of(at_z), 0, dtype, dtype, true) +
               std::fabs(gradient) * epilogue_gelu_slope(dtype);
      });
      EXPECT_TRUE(near(dx.values(), expected, tolerance, dtype));
    }
}

// No algorithm.

class MissingAlgorithmTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { skip_without(DeviceType::cuda); }
};
INSTANTIATE_TEST_SUITE_P(Each, MissingAlgorithmTest, testing::Range(0, static_cast<int>(detail::kEpilogues)),
                         [](const auto& info) { return std::string(name_of(static_cast<Epilogue>(info.param))); });

/// Equal numbers. Zeros of either sign are equal to each other, and to what gelu leaves of a -16 in f64.
testing::AssertionResult same(const std::vector<double>& got, const std::vector<double>& expected) {
  const auto equal = [](double a, double b) { return a == b || std::fabs(a - b) < 0x1p-300; };
  const auto [wrong, right] = std::ranges::mismatch(got, expected, equal);
  if (wrong == got.end() && right == expected.end()) return testing::AssertionSuccess();
  if (wrong == got.end() || right == expected.end()) return testing::AssertionFailure() << "not as many numbers";
  return testing::AssertionFailure() << "number " << wrong - got.begin() << " is " << *wrong << ", not " << *right;
}

/// One forward and one backward of every kind, as one list of numbers.
std::vector<double> everything(const Context& context, Dtype dtype) {
  const Layer layer({24, 40, 56}, kSeed);
  const Dtype wide = accumulation_dtype(dtype);
  std::vector<double> numbers;
  const auto keep = [&](const GuardedMatrix& matrix) {
    const Values part = matrix.values();
    numbers.insert(numbers.end(), part.elements.begin(), part.elements.end());
  };
  // Pre-activations that are multiples of 16, where gelu is exact whoever computes it.
  const Values w16 = layer.w.map([](double v) { return 16 * v; });
  const Values b16 = layer.b.map([](double v) { return 16 * v; });
  GuardedMatrix x(dtype, layer.x), w(dtype, w16), b(dtype, b16);
  for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_tanh})
    for (const bool with_bias : {false, true})
      for (const bool training : {false, true}) {
        GuardedMatrix y(dtype, 24, 40), pre(dtype, 24, 40);
        GuardedBytes mask(mask_bytes(24, 40), 0);
        OnDevice at(context);
        dispatch(context, [&](const auto& execution) {
          kernels::linear_forward(
              execution,
              {.x = at.matrix(x),
               .w = at.matrix(w),
               .b = with_bias ? at.vector(b) : Vector(),
               .y = at.matrix(y),
               .activation = activation,
               .mask = training && activation == Activation::relu ? at.bytes(mask) : nullptr,
               .pre_activation = training && activation == Activation::gelu_tanh ? at.matrix(pre) : Matrix()});
        });
        at.fetch();
        keep(y);
        if (training && activation == Activation::relu) {
          for (std::int64_t i = 0; i < 24 * 40; ++i) numbers.push_back(mask_bit(mask.data(), 40, i / 40, i % 40));
        }
      }
  GuardedMatrix dz(dtype, layer.dz), plain_w(dtype, layer.w);
  GuardedMatrix pre(dtype, integers(24, 56, kSeed + 9, 2).map([](double v) { return 16 * v; }));
  GuardedBytes mask = bytes_of(layer.mask);
  for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_tanh})
    for (const bool with_bias : {false, true}) {
      const bool wants_bias = with_bias && activation != Activation::none;
      GuardedMatrix dx(dtype, 24, 56), bias(wide, 1, 56);
      OnDevice at(context);
      const kernels::FusedResult result = dispatch(context, [&](const auto& execution) {
        return kernels::linear_input_gradient(
            execution, {.dz = at.matrix(dz),
                        .w = at.matrix(plain_w),
                        .dx = at.matrix(dx),
                        .activation = activation,
                        .mask = activation == Activation::relu ? at.bytes(mask) : nullptr,
                        .pre_activation = activation == Activation::gelu_tanh ? at.matrix(pre) : Matrix(),
                        .bias = wants_bias ? at.vector(bias) : Vector()});
      });
      at.fetch();
      keep(dx);
      if (wants_bias && result.bias_gradient) keep(bias);
    }
  GuardedMatrix dw(wide, 40, 56), db(wide, 1, 40);
  OnDevice at(context);
  dispatch(context, [&](const auto& execution) {
    kernels::linear_weight_gradient(
        execution, {.dz = at.matrix(dz), .x = at.matrix(x), .dw = at.matrix(dw), .bias = at.vector(db)});
  });
  at.fetch();
  keep(dw);
  keep(db);
  return numbers;
}

TEST_P(MissingAlgorithmTest, GivesTheSameNumbersAndIsCounted) {
  const auto epilogue = static_cast<Epilogue>(GetParam());
  std::int64_t missing = 0;
  for (const Strategy strategy : kStrategies) {
    const Context context = Context::cuda({.threads = 1, .strategy = strategy});
    const std::vector<double> expected = everything(context, Dtype::f32);
    EXPECT_EQ(context.counters().missing_algorithms, 0);
    blaslt_of(context).force_no_algorithm(epilogue);
    EXPECT_TRUE(same(everything(context, Dtype::f32), expected)) << name_of(strategy);
    missing += context.counters().missing_algorithms;
    blaslt_of(context).force_no_algorithm(epilogue, false);
    const std::int64_t before = context.counters().missing_algorithms;
    EXPECT_TRUE(same(everything(context, Dtype::f32), expected));
    EXPECT_EQ(context.counters().missing_algorithms, before);
  }
  EXPECT_GT(missing, 0) << "nothing used " << name_of(epilogue);
}

TEST_F(CudaLinearTest, SurvivesTheAbsenceOfEveryAlgorithm) {
  const Context context = Context::cuda({.threads = 1, .strategy = Strategy::pass});
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (std::size_t i = 0; i < detail::kEpilogues; ++i) {
      blaslt_of(context).force_no_algorithm(static_cast<Epilogue>(i), false);
    }
    const std::vector<double> expected = everything(context, dtype);
    for (std::size_t i = 0; i < detail::kEpilogues; ++i)
      blaslt_of(context).force_no_algorithm(static_cast<Epilogue>(i));
    const std::int64_t uses = context.counters().plan_uses;
    EXPECT_TRUE(same(everything(context, dtype), expected)) << name_of(dtype);
    EXPECT_EQ(context.counters().plan_uses, uses) << "cuBLASLt ran";
  }
}

TEST_F(CudaLinearTest, NeverUsesTheBiasGradientThatIsKnownToBeWrong) {
  // f16, one input feature.
  for (const std::int64_t n : {2, 64, 264})
    for (const std::int64_t m : {64, 129, 4100}) {
      const Context context = context_for(kPrecisions[4], Strategy::epilogue);
      const Values dz = thinned_integers(m, n, kSeed, 2, 60, 200), x = integers(m, 1, kSeed + 1, 1);
      const std::int64_t missing = context.counters().missing_algorithms;
      GuardedMatrix gdz(Dtype::f16, dz), gx(Dtype::f16, x), dw(Dtype::f32, n, 1), db(Dtype::f32, 1, n);
      OnDevice at(context);
      const kernels::FusedResult result = dispatch(context, [&](const auto& execution) {
        return kernels::linear_weight_gradient(
            execution, {.dz = at.matrix(gdz), .x = at.matrix(gx), .dw = at.matrix(dw), .bias = at.vector(db)});
      });
      at.fetch();
      EXPECT_FALSE(result.fused);
      EXPECT_EQ(context.counters().missing_algorithms, missing + 1);
      EXPECT_TRUE(equal(db.values(), column_sums(dz), Dtype::f32));
      EXPECT_TRUE(equal(dw.values(), product(transposed(dz), x), Dtype::f32));
    }
}

// Plans.

TEST_F(CudaLinearTest, PlansAreMadeOnceAndDependOnAlignment) {
  const Context context = Context::cuda({.threads = 1});
  const Layer layer({32, 48, 64}, kSeed);
  const auto run = [&](const Layout& layout) {
    GuardedMatrix x(Dtype::f32, layer.x), w(Dtype::f32, layer.w), b(Dtype::f32, layer.b, layout);
    GuardedMatrix y(Dtype::f32, 32, 48);
    OnDevice at(context);
    dispatch(context, [&](const auto& execution) {
      kernels::linear_forward(execution, {.x = at.matrix(x), .w = at.matrix(w), .b = at.vector(b), .y = at.matrix(y)});
    });
    at.fetch();
    EXPECT_TRUE(equal(y.values(), plus_row(product(layer.x, transposed(layer.w)), layer.b), Dtype::f32));
  };
  run({});
  EXPECT_EQ(context.counters().plan_misses, 1);
  run({});
  EXPECT_EQ(context.counters().plan_misses, 1);
  EXPECT_EQ(context.counters().plan_uses, 2);
  run({.offset = 1});
  EXPECT_EQ(context.counters().plan_misses, 2) << "a bias 4 bytes off must not use the plan of an aligned one";
  run({.offset = 1});
  EXPECT_EQ(context.counters().plan_misses, 2);
}

// Cuts.

TEST_F(CudaLinearTest, CutsProductsOfTooManyElements) {
  for (const Strategy strategy : kStrategies) {
    const Context context = Context::cuda({.threads = 1, .strategy = strategy});
    blaslt_of(context).set_element_limit(128 * 10 + 1);  // ten rows of a mask
    for (const Precision& precision : {kPrecisions[0], kPrecisions[1], kPrecisions[3]}) {
      SCOPED_TRACE(std::string(precision.name) + " " + std::string(name_of(strategy)));
      const Layer layer({47, 13, 21}, kSeed);
      const std::int64_t uses = context.counters().plan_uses;
      ForwardTruth truth{.product = product(layer.x, transposed(layer.w)), .z = {}};
      truth.z = plus_row(truth.product, layer.b);
      expect_forward(context, precision, layer, truth, {});
      expect_input_gradient(context, precision, layer, product(layer.dz, layer.w), {});
      expect_weight_gradient(context, precision, layer, product(transposed(layer.dz), layer.x), {});
      EXPECT_GE(context.counters().plan_uses - uses, 5 * (6 + 4) + 3) << "nothing was cut";
    }
  }
}

TEST_F(CudaLinearTest, ComputesInFp32UnlessToldOtherwise) {
  // 1 + 2^-11 + 2^-20 has more bits than tf32 keeps.
  const double value = 1 + 0x1p-11 + 0x1p-20;
  for (const MathMode math : {MathMode::fp32, MathMode::tf32}) {
    const Context context = Context::cuda({.threads = 1, .math = math});
    GuardedMatrix x(Dtype::f32, Values(64, 64).map([&](double) { return value; }));
    Values identity(64, 64);
    for (std::int64_t i = 0; i < 64; ++i) identity.at(i, i) = 1;
    GuardedMatrix w(Dtype::f32, identity), y(Dtype::f32, 64, 64);
    OnDevice at(context);
    dispatch(context, [&](const auto& execution) {
      kernels::linear_forward(execution, {.x = at.matrix(x), .w = at.matrix(w), .y = at.matrix(y)});
    });
    at.fetch();
    if (math == MathMode::fp32) {
      EXPECT_EQ(y.values().at(5, 7), value);
    } else {
      EXPECT_NE(y.values().at(5, 7), value);
      EXPECT_NEAR(y.values().at(5, 7), value, 0x1p-10);
    }
  }
}

}  // namespace
}  // namespace fusegrad::test
