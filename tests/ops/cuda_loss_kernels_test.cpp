// The GPU's loss kernels against the CPU's, and against the fp64 truth within the bounds of tolerance.h.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "tests/support/both_devices.h"
#include "tests/support/device.h"
#include "tests/support/dtypes.h"
#include "tests/support/fills.h"
#include "tests/support/matching.h"
#include "tests/support/tolerance.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/ops/mse_loss_kernels.h>
#include <fusegrad/ops/softmax_cross_entropy_kernels.h>

namespace fusegrad::test {
namespace {

using Handle = BothDevices::Handle;

constexpr Reduction kReductions[] = {Reduction::mean, Reduction::sum, Reduction::none};

class LossCudaKernelsTest : public EachDtype {
 protected:
  void SetUp() override { skip_without(DeviceType::cuda); }
};
FUSEGRAD_EACH_DTYPE(LossCudaKernelsTest);

/// Labels as the bytes of an i32 vector.
std::vector<std::uint8_t> as_bytes(const std::vector<std::int32_t>& labels) {
  std::vector<std::uint8_t> bytes(labels.size() * sizeof(std::int32_t));
  std::memcpy(bytes.data(), labels.data(), bytes.size());
  return bytes;
}

/// A softmax cross-entropy over random logits, on both devices.
struct SoftmaxCase {
  std::int64_t batch;
  std::int64_t classes;
  Reduction reduction = Reduction::mean;
  double smoothing = 0;
  bool weighted = false;
  bool in_place = false;  ///< the gradient is added to a former one where that lies
  Layout layout = {};
};

constexpr std::int32_t kIgnored = -7;

class SoftmaxRun {
 public:
  SoftmaxRun(const SoftmaxCase& test, Dtype dtype) : test_(test), dtype_(dtype) {
    const Dtype wide = accumulation_dtype(dtype);
    z = normal(test.batch, test.classes, 1, dtype).map([](double value) { return 3 * value; });
    z = on_grid(z, dtype);
    const Values drawn = integers(1, test.batch, 2, 8);
    labels.resize(static_cast<std::size_t>(test.batch));
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const auto value = static_cast<std::int64_t>(drawn.elements[i]) + 8 + 31 * static_cast<std::int64_t>(i);
      labels[i] = i % 5 == 3 ? kIgnored : static_cast<std::int32_t>(value % test.classes);
    }
    weights = integers(1, test.classes, 3, 4).map([&](double w) { return test.weighted ? std::fabs(w) / 2 : 1; });
    former = normal(test.batch, test.classes, 4, dtype);
    upstream = test.reduction == Reduction::none ? normal(1, test.batch, 5, wide) : Values(1, 1, {0.75});

    const std::int64_t results = test.reduction == Reduction::none ? test.batch : 1;
    const Handle logits = both.matrix(dtype, z, test.layout);
    const Handle label_bytes = both.bytes(as_bytes(labels));
    const Handle class_weights = test.weighted ? both.matrix(wide, weights) : Handle{};
    const Handle dy = both.matrix(wide, upstream);
    y = both.matrix(wide, 1, results);
    statistics = both.matrix(wide, 1, 2 * test.batch + 1);
    d = test.in_place ? both.matrix(dtype, former, test.layout)
                      : both.matrix(dtype, test.batch, test.classes, test.layout);
    both.run([&](const auto& execution, const auto& at) {
      const kernels::SoftmaxCrossEntropy loss{.logits = at.matrix(logits),
                                              .labels = {at.bytes(label_bytes), test.batch, Dtype::i32},
                                              .class_weights = at.vector(class_weights),
                                              .reduction = test.reduction,
                                              .label_smoothing = test.smoothing,
                                              .ignore_index = kIgnored};
      kernels::softmax_cross_entropy_forward(execution,
                                             {.loss = loss, .statistics = at.vector(statistics), .y = at.vector(y)});
      kernels::softmax_cross_entropy_backward(execution, {.loss = loss,
                                                          .statistics = at.vector(statistics),
                                                          .dy = at.vector(dy),
                                                          .c = test.in_place ? at.matrix(d) : Matrix{},
                                                          .d = at.matrix(d)});
    });
  }

  void check() {
    const std::int64_t classes = test_.classes;
    const double share = test_.smoothing / static_cast<double>(classes);
    double weight_sum = 0;
    for (const double w : weights.elements) weight_sum += w;
    Values row_loss(1, test_.batch);
    Values row_bound(1, test_.batch);
    Values gradient(test_.batch, classes);
    Values gradient_bound(test_.batch, classes);
    double total_weight = 0;
    for (std::int64_t i = 0; i < test_.batch; ++i) {
      const std::int32_t t = labels[static_cast<std::size_t>(i)];
      if (t == kIgnored) continue;
      const double* row = z.elements.data() + i * classes;
      const double m = *std::max_element(row, row + classes);
      long double exact_s = 0;
      for (std::int64_t j = 0; j < classes; ++j) exact_s += std::exp(static_cast<long double>(row[j]) - m);
      const auto s = static_cast<double>(exact_s);
      const double w_t = weights.elements[static_cast<std::size_t>(t)];
      const double hit = (1 - test_.smoothing) * w_t;
      const long double log_sum = std::log(exact_s) + m;
      long double loss = hit * (log_sum - row[t]);
      double bound = hit * softmax_loss(static_cast<double>(log_sum) - row[t], row[t], m, dtype_);
      for (std::int64_t j = 0; j < classes; ++j) {
        const double w = share * weights.elements[static_cast<std::size_t>(j)];
        const long double L = log_sum - row[j];
        loss += w * L;
        bound += w * softmax_loss(static_cast<double>(L), row[j], m, dtype_);
        const double p = std::exp(row[j] - m) / s;
        gradient.at(i, j) = p * (hit + share * weight_sum) - (j == t ? hit : 0) - w;
        gradient_bound.at(i, j) =
            (hit + share * weight_sum) *
            (softmax_gradient(p, dtype_) + p * softmax_sums(static_cast<double>(classes), 0, dtype_));
      }
      row_loss.at(0, i) = static_cast<double>(loss);
      bound += softmax_sums(static_cast<double>(classes), row_loss.at(0, i), dtype_);
      row_bound.at(0, i) = bound;
      total_weight += w_t;
    }
    const bool none = test_.reduction == Reduction::none;
    const double divisor = test_.reduction == Reduction::mean ? total_weight : 1;
    Values want(1, none ? test_.batch : 1);
    Values bound(1, want.cols);
    for (std::int64_t i = 0; i < test_.batch; ++i) {
      want.at(0, none ? i : 0) += row_loss.at(0, i) / divisor;
      bound.at(0, none ? i : 0) += row_bound.at(0, i) / divisor;
      for (std::int64_t j = 0; j < classes; ++j) {
        const double g = upstream.at(0, none ? i : 0) / divisor;
        const double u = accumulation_roundoff(dtype_);
        // A few more roundings than the bound has: of the factors, and of what is added.
        const double kept = test_.in_place ? former.at(i, j) : 0;
        gradient.at(i, j) = gradient.at(i, j) * g + kept;
        gradient_bound.at(i, j) = gradient_bound.at(i, j) * std::fabs(g) + 4 * u * std::fabs(g) * (1 + weight_sum) +
                                  u * std::fabs(gradient.at(i, j));
      }
    }
    EXPECT_TRUE(near(both.gpu(y).values(), want, bound, accumulation_dtype(dtype_)));
    EXPECT_TRUE(near(both.gpu(d).values(), gradient, gradient_bound, dtype_));
    EXPECT_TRUE(both.gpu(y).intact());
    EXPECT_TRUE(both.gpu(d).intact());
    EXPECT_TRUE(both.gpu(statistics).intact());
  }

  BothDevices both;
  Values z;
  std::vector<std::int32_t> labels;
  Values weights;
  Values former;
  Values upstream;
  Handle y;
  Handle d;
  Handle statistics;

 private:
  SoftmaxCase test_;
  Dtype dtype_;
};

TEST_P(LossCudaKernelsTest, SoftmaxCrossEntropyIsWithinItsBound) {
  for (const Reduction reduction : kReductions) {
    for (const auto& [batch, classes] : {std::pair{1, 1},
                                         {1, 5},
                                         {64, 10},
                                         {7, 33},
                                         {300, 128},
                                         {9, 1000},
                                         {5, 2048},
                                         {3, 2049},
                                         {4, 5000},
                                         {5000, 10}}) {
      for (const Layout& layout : {Layout{}, Layout{.padding = 3, .offset = 1}}) {
        SCOPED_TRACE(std::to_string(batch) + " x " + std::to_string(classes));
        SoftmaxRun({.batch = batch, .classes = classes, .reduction = reduction, .layout = layout}, dtype()).check();
      }
    }
  }
}

TEST_P(LossCudaKernelsTest, SoftmaxCrossEntropyTakesWeightsSmoothingAndAFormerGradient) {
  for (const Reduction reduction : kReductions) {
    for (const bool weighted : {false, true}) {
      for (const double smoothing : {0.0, 0.1, 1.0}) {
        for (const auto& [batch, classes] : {std::pair{13, 10}, {13, 256}, {3, 4096}}) {
          SCOPED_TRACE(std::to_string(batch) + " x " + std::to_string(classes));
          SoftmaxRun({.batch = batch,
                      .classes = classes,
                      .reduction = reduction,
                      .smoothing = smoothing,
                      .weighted = weighted,
                      .in_place = true},
                     dtype())
              .check();
        }
      }
    }
  }
}

TEST_P(LossCudaKernelsTest, SoftmaxCrossEntropyOfExtremeLogitsIsTheCpus) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Values rows(7, 4, {0,    0,    0,    0,     //
                           1e4,  -1e4, 0,    1e4,   //
                           -inf, 2,    2,    2,     // a class that is ruled out
                           2,    2,    -inf, 2,     // and one that is the label
                           -inf, -inf, -inf, -inf,  //
                           inf,  0,    0,    0,     //
                           0,    nan,  0,    0});
  BothDevices both;
  const Handle logits = both.matrix(dtype(), rows);
  const Handle labels = both.bytes({0, 1, 1, 2, 0, 0, 3});
  const Handle y = both.matrix(wide(), 1, 7);
  const Handle dy = both.matrix(wide(), Values(1, 7, {1, 1, 1, 1, 1, 1, 1}));
  const Handle statistics = both.matrix(wide(), 1, 15);
  const Handle d = both.matrix(dtype(), 7, 4);
  both.run([&](const auto& execution, const auto& at) {
    const kernels::SoftmaxCrossEntropy loss{
        .logits = at.matrix(logits), .labels = {at.bytes(labels), 7, Dtype::u8}, .reduction = Reduction::none};
    kernels::softmax_cross_entropy_forward(execution,
                                           {.loss = loss, .statistics = at.vector(statistics), .y = at.vector(y)});
    kernels::softmax_cross_entropy_backward(
        execution, {.loss = loss, .statistics = at.vector(statistics), .dy = at.vector(dy), .d = at.matrix(d)});
  });
  const auto kind = [](double v) { return std::isnan(v) ? 3 : std::isinf(v) ? 2 : v == 0 ? 0 : 1; };
  for (const Handle handle : {y, d}) {
    const Values got = both.gpu(handle).values().map(kind);
    EXPECT_EQ(got.elements, both.cpu(handle).values().map(kind).elements);
  }
}

TEST_P(LossCudaKernelsTest, AMeanOverNothingIsZero) {
  BothDevices both;
  const Handle logits = both.matrix(dtype(), normal(3, 4, 6, dtype()));
  const Handle labels = both.bytes({9, 9, 9});
  const Handle y = both.matrix(wide(), 1, 1);
  const Handle dy = both.matrix(wide(), Values(1, 1, {1}));
  const Handle statistics = both.matrix(wide(), 1, 7);
  const Handle d = both.matrix(dtype(), 3, 4);
  const Handle empty = both.matrix(wide(), 1, 1);
  both.run([&](const auto& execution, const auto& at) {
    kernels::SoftmaxCrossEntropy loss{.logits = at.matrix(logits),
                                      .labels = {at.bytes(labels), 3, Dtype::u8},
                                      .label_smoothing = 0.1,
                                      .ignore_index = 9};
    kernels::softmax_cross_entropy_forward(execution,
                                           {.loss = loss, .statistics = at.vector(statistics), .y = at.vector(y)});
    kernels::softmax_cross_entropy_backward(
        execution, {.loss = loss, .statistics = at.vector(statistics), .dy = at.vector(dy), .d = at.matrix(d)});
    loss.logits.rows = 0;
    kernels::softmax_cross_entropy_forward(execution, {.loss = loss, .y = at.vector(empty)});
  });
  EXPECT_EQ(both.gpu(y).values().elements[0], 0);
  EXPECT_EQ(both.gpu(empty).values().elements[0], 0);
  EXPECT_EQ(both.gpu(d).values().elements, std::vector<double>(12));
}

TEST_P(LossCudaKernelsTest, SoftmaxCrossEntropyRepeatsItsBits) {
  const SoftmaxCase test{.batch = 9000, .classes = 40, .smoothing = 0.1, .weighted = true};
  SoftmaxRun first(test, dtype());
  for (int i = 0; i < 5; ++i) {
    SoftmaxRun again(test, dtype());
    EXPECT_EQ(again.both.gpu(again.y).bytes(), first.both.gpu(first.y).bytes());
    EXPECT_EQ(again.both.gpu(again.d).bytes(), first.both.gpu(first.d).bytes());
  }
}

TEST_P(LossCudaKernelsTest, MseLossIsTheCpus) {
  for (const Reduction reduction : kReductions) {
    for (const Dtype target_dtype : {dtype(), Dtype::f32}) {
      for (const std::int64_t n : {0, 1, 3, 8, 1000, 70001}) {
        for (const bool in_place : {false, true}) {
          for (const std::int64_t offset : {0, 1}) {
            SCOPED_TRACE(n);
            const std::int64_t results = reduction == Reduction::none ? n : 1;
            BothDevices both;
            const Handle p = both.matrix(dtype(), normal(1, n, 7, dtype()), {.offset = offset});
            const Handle t = both.matrix(target_dtype, normal(1, n, 8, dtype()));
            const Handle y = both.matrix(wide(), 1, results);
            const Handle dy = both.matrix(wide(), normal(1, results, 9, wide()));
            const Handle d = in_place ? both.matrix(dtype(), normal(1, n, 10, dtype())) : both.matrix(dtype(), 1, n);
            both.run([&](const auto& execution, const auto& at) {
              kernels::mse_loss_forward(
                  execution,
                  {.prediction = at.vector(p), .target = at.vector(t), .reduction = reduction, .y = at.vector(y)});
              kernels::mse_loss_backward(execution, {.prediction = at.vector(p),
                                                     .target = at.vector(t),
                                                     .reduction = reduction,
                                                     .dy = at.vector(dy),
                                                     .c = in_place ? at.vector(d) : Vector{},
                                                     .d = at.vector(d)});
            });
            EXPECT_TRUE(both.same(d)) << "one rounding an operation, in the same order";
            if (reduction == Reduction::none) {
              EXPECT_TRUE(both.same(y));
            } else {
              const Values want = both.cpu(y).values();
              const Values off = want.map([&](double value) { return static_cast<double>(n) * 0x1p-52 * value; });
              EXPECT_TRUE(near(both.gpu(y).values(), want, off, wide()));
            }
          }
        }
      }
    }
  }
}

/// What the host is told of labels and weights that only the kernel has seen.
class FaultCudaKernelsTest : public testing::Test {
 protected:
  void SetUp() override { skip_without(DeviceType::cuda); }

  /// A forward over zeros, and the loss's row values.
  static void forward(const Context& gpu, const std::vector<std::int32_t>& labels, const std::vector<float>& weights,
                      Tensor& y) {
    const auto batch = static_cast<std::int64_t>(labels.size());
    const Tensor logits = Tensor::zeros(gpu, {batch, 3}, Dtype::f32);
    const Tensor label = Tensor::from(gpu, {batch}, labels);
    const Tensor weight = Tensor::from(gpu, {3}, weights);
    const kernels::SoftmaxCrossEntropyForward args{.loss = {.logits = matrix_of(logits),
                                                            .labels = vector_of(label),
                                                            .class_weights = vector_of(weight),
                                                            .reduction = Reduction::none},
                                                   .y = mutable_vector_of(y)};
    dispatch(gpu, [&](const auto& execution) { kernels::softmax_cross_entropy_forward(execution, args); });
  }
  /// The message of what wait throws, or "".
  static std::string message_of_wait(const Context& gpu) {
    try {
      gpu.synchronize();
    } catch (const ValueError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(FaultCudaKernelsTest, ABadLabelIsNamedOnceAtTheNextWait) {
  const Context gpu = Context::cuda();
  Tensor y = Tensor::zeros(gpu, {4}, Dtype::f32);
  forward(gpu, {0, 3, 2, -1}, {1, 1, 1}, y);
  EXPECT_EQ(message_of_wait(gpu), "softmax_cross_entropy: label 3 in row 1 is not one of 3 classes");
  EXPECT_EQ(message_of_wait(gpu), "");
  const std::vector<float> losses = y.to_vector<float>();
  EXPECT_TRUE(std::isnan(losses[1]));
  EXPECT_TRUE(std::isnan(losses[3]));
  EXPECT_NEAR(losses[0], std::log(3.0), 1e-6);
}

TEST_F(FaultCudaKernelsTest, ABadClassWeightIsNamed) {
  const Context gpu = Context::cuda();
  Tensor y = Tensor::zeros(gpu, {1}, Dtype::f32);
  forward(gpu, {0}, {1, 1, -0.5f}, y);
  EXPECT_EQ(message_of_wait(gpu),
            "softmax_cross_entropy: class weight -0.5 of class 2 is not a finite number of at least 0");
}

TEST_F(FaultCudaKernelsTest, AReadOfAResultReportsItToo) {
  const Context gpu = Context::cuda();
  Tensor y = Tensor::zeros(gpu, {1}, Dtype::f32);
  forward(gpu, {7}, {1, 1, 1}, y);
  EXPECT_THROW(y.item(), ValueError);
  EXPECT_TRUE(std::isnan(y.item()));
}

}  // namespace
}  // namespace fusegrad::test
