#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/dtypes.h"
#include "tests/support/fills.h"
#include "tests/support/guarded.h"
#include "tests/support/matching.h"
#include "tests/support/tolerance.h"
#include "tests/support/values.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/gradient_check.h>
#include <fusegrad/ops/arithmetic.h>
#include <fusegrad/ops/reduction.h>
#include <fusegrad/ops/softmax_cross_entropy.h>
#include <fusegrad/ops/softmax_cross_entropy_kernels.h>

namespace fusegrad::test {
namespace {

using testing::ThrowsMessage;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr Reduction kReductions[] = {Reduction::mean, Reduction::sum, Reduction::none};

/// The options of a test, with the weights as numbers.
struct Options {
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0;
  std::optional<int> ignore_index = std::nullopt;
  std::vector<double> class_weights = {};

  double weight(std::int64_t c) const { return class_weights.empty() ? 1 : class_weights[static_cast<std::size_t>(c)]; }
};

double times(double weight, double value) { return weight == 0 ? 0 : weight * value; }

/// The definition, in extended precision, with the bounds that softmax_cross_entropy promises.
struct Reference {
  Values loss, loss_bound;          // [1, batch], rows
  Values gradient, gradient_bound;  // [batch, classes], of the rows' losses
  double total_weight = 0;

  Reference(const Values& z, const std::vector<int>& labels, const Options& options, Dtype dtype)
      : loss(1, z.rows), loss_bound(1, z.rows), gradient(z.rows, z.cols), gradient_bound(z.rows, z.cols) {
    const double u = accumulation_roundoff(dtype);
    const double share = options.label_smoothing / static_cast<double>(z.cols);
    double all_weights = 0;
    for (std::int64_t j = 0; j < z.cols; ++j) all_weights += options.weight(j);
    for (std::int64_t i = 0; i < z.rows; ++i) {
      const int label = labels[static_cast<std::size_t>(i)];
      if (label == options.ignore_index) continue;
      double m = z.at(i, 0);
      for (std::int64_t j = 1; j < z.cols; ++j) m = std::max(m, z.at(i, j));
      long double s = 0;
      for (std::int64_t j = 0; j < z.cols; ++j) s += std::exp(static_cast<long double>(z.at(i, j)) - m);
      const auto row_loss = [&](std::int64_t j) {
        return static_cast<double>(std::log(s) + (static_cast<long double>(m) - z.at(i, j)));
      };
      const double hit = (1 - options.label_smoothing) * options.weight(label);
      const double weight = hit + share * all_weights;
      total_weight += options.weight(label);
      long double row = times(hit, row_loss(label));
      loss_bound.at(0, i) = times(hit, softmax_loss(row_loss(label), z.at(i, label), m, dtype));
      for (std::int64_t j = 0; j < z.cols; ++j) {
        const double w = share * options.weight(j);
        row += times(w, row_loss(j));
        loss_bound.at(0, i) += times(w, softmax_loss(row_loss(j), z.at(i, j), m, dtype));
        if (weight == 0) continue;
        const auto p = static_cast<double>(std::exp(static_cast<long double>(z.at(i, j)) - m) / s);
        gradient.at(i, j) = weight * p - w - (j == label ? hit : 0);
        gradient_bound.at(i, j) = weight * softmax_gradient(p, dtype) + u * (w + (j == label ? hit : 0));
      }
      loss.at(0, i) = static_cast<double>(row);
    }
  }

  double total() const {
    double sum = 0;
    for (const double value : loss.elements) sum += value;
    return sum;
  }
  double total_bound() const {
    double sum = 0;
    for (const double value : loss_bound.elements) sum += value;
    return sum;
  }
};

class SoftmaxCrossEntropyTest : public EachDevice {
 protected:
  struct Result {
    Tensor loss;
    Values gradient;
  };

  SoftmaxCrossEntropyOptions options_of(const Options& options) const {
    SoftmaxCrossEntropyOptions result{.reduction = options.reduction,
                                      .label_smoothing = options.label_smoothing,
                                      .ignore_index = options.ignore_index};
    if (!options.class_weights.empty()) {
      Values weights(1, static_cast<std::int64_t>(options.class_weights.size()));
      weights.elements = options.class_weights;
      result.class_weights = tensor_of(context_, {weights.cols}, Dtype::f32, weights);
    }
    return result;
  }

  /// Loss, and gradient of the sum of the results.
  Result run(const Values& z, const std::vector<int>& labels, const Options& options) const {
    Tape tape(context_);
    const Var logits = tape.variable(tensor_of(context_, dtype(), z));
    const Tensor targets = Tensor::from(context_, {static_cast<std::int64_t>(labels.size())}, labels);
    const Var loss = softmax_cross_entropy(logits, targets, options_of(options));
    EXPECT_EQ(loss.dtype(), wide());
    EXPECT_EQ(loss.shape(), options.reduction == Reduction::none ? Shape({z.rows}) : Shape());
    tape.backward(loss, Tensor::full(context_, loss.shape(), wide(), 1));
    EXPECT_EQ(tape.gradient(logits).dtype(), dtype());
    return {loss.value(), values_of(tape.gradient(logits))};
  }

  /// A case of the closed-form table: 20 digits in f64, the promised bounds elsewhere.
  void expect(const Values& z, const std::vector<int>& labels, const Options& options, double loss,
              const Values& gradient) const {
    const Result result = run(z, labels, options);
    const bool f64 = dtype() == Dtype::f64;
    const double u = accumulation_roundoff(dtype());
    const Reference reference(z, labels, options, dtype());
    EXPECT_TRUE(within(result.loss.item(), loss, f64 ? closed_form(loss) : reference.total_bound(), wide()))
        << result.loss.item() << " for " << loss;
    EXPECT_TRUE(
        near(result.gradient, gradient, gradient.map([&](double g) { return f64 ? closed_form(g) : 9 * u; }), dtype()));
  }

  Context context_ = device_context({.threads = 2});
};
FUSEGRAD_EACH_DEVICE(SoftmaxCrossEntropyTest);

TEST_P(SoftmaxCrossEntropyTest, ThreeClasses) {
  expect(Values(1, 3, {1, 2, 3}), {2}, {}, 0.40760596444438030448,
         Values(1, 3, {0.090030573170380457998, 0.24472847105479765247, -0.33475904422517811047}));
}

TEST_P(SoftmaxCrossEntropyTest, LogitsFarApart) {
  const double far = dtype() == Dtype::bf16 ? 9984 : 10000;  // 10000 is no bf16
  const Values z(1, 3, {far, -far, 0});
  const Result right = run(z, {0}, {});
  EXPECT_EQ(right.loss.item(), 0);
  EXPECT_TRUE(equal(right.gradient, Values(1, 3, {0, 0, 0}), dtype()));
  const Result middle = run(z, {2}, {});
  EXPECT_EQ(middle.loss.item(), far);
  EXPECT_TRUE(equal(middle.gradient, Values(1, 3, {1, 0, -1}), dtype()));
}

TEST_P(SoftmaxCrossEntropyTest, AClassRuledOutByMinusInfinity) {
  const Values z(1, 3, {0, -kInf, 0});
  const Result other = run(z, {0}, {});
  EXPECT_TRUE(within(other.loss.item(), 0.69314718055994530942, 8 * accumulation_roundoff(dtype()), wide()));
  EXPECT_TRUE(equal(other.gradient, Values(1, 3, {-0.5, 0, 0.5}), dtype()));
  const Result itself = run(z, {1}, {});
  EXPECT_EQ(itself.loss.item(), kInf);
  EXPECT_TRUE(equal(itself.gradient, Values(1, 3, {0.5, -1, 0.5}), dtype()));
  const Result smoothed = run(z, {0}, {.label_smoothing = 0.1});
  EXPECT_EQ(smoothed.loss.item(), kInf);
  const Values gradient(1, 3, {-0.43333333333333333333, -0.033333333333333333333, 0.46666666666666666667});
  EXPECT_TRUE(near(smoothed.gradient, gradient,
                   gradient.map([&](double) { return 9 * accumulation_roundoff(dtype()); }), dtype()));
}

TEST_P(SoftmaxCrossEntropyTest, ARuledOutClassOfWeightZeroIsNoInfiniteLoss) {
  // 0 times infinity: the class has no weight, neither in the smoothed part nor as the label.
  const Options options{.label_smoothing = 0.25, .class_weights = {1, 0, 1}};
  const Result result = run(Values(2, 3, {0, -kInf, 0, 0, -kInf, 0}), {0, 1}, options);
  EXPECT_TRUE(std::isfinite(result.loss.item()));
  for (const double g : result.gradient.elements) EXPECT_TRUE(std::isfinite(g));
}

TEST_P(SoftmaxCrossEntropyTest, ARowWithoutAFiniteMaximumIsNanAndOthersAreNot) {
  for (const std::vector<double>& bad :
       {std::vector<double>{-kInf, -kInf, -kInf}, {kInf, 0, 0}, {0, kNan, 0}, {kNan, kNan, kNan}}) {
    Values z(3, 3, {1, 2, 3, 0, 0, 0, 1, 2, 3});
    for (int j = 0; j < 3; ++j) z.at(1, j) = bad[static_cast<std::size_t>(j)];
    const Result result = run(z, {2, 0, 2}, {.reduction = Reduction::none});
    const Values losses = values_of(result.loss);
    EXPECT_TRUE(std::isnan(losses.at(0, 1)));
    EXPECT_TRUE(std::isfinite(losses.at(0, 0)));
    EXPECT_EQ(losses.at(0, 0), losses.at(0, 2));
    for (int j = 0; j < 3; ++j) {
      EXPECT_TRUE(std::isnan(result.gradient.at(1, j)));
      EXPECT_TRUE(std::isfinite(result.gradient.at(0, j)));
      EXPECT_EQ(result.gradient.at(0, j), result.gradient.at(2, j));
    }
    EXPECT_TRUE(std::isnan(run(z, {2, 0, 2}, {}).loss.item()));
  }
}

TEST_P(SoftmaxCrossEntropyTest, LabelSmoothing) {
  expect(Values(1, 4, {2, 0, -1, 1}), {0}, {.label_smoothing = 0.1}, 0.59018969856119533049,
         Values(1, 4,
                {-0.28108574011202768824, 0.062144318742032567489, 0.0070586032800849884508, 0.21188281808991013230}));
}

TEST_P(SoftmaxCrossEntropyTest, LabelSmoothingDoesNotSeeIgnoredRows) {
  const Values gradient(1, 3, {0.05669724, 0.21139514, -0.26809238});
  for (const int rows : {1, 2}) {
    Values z(rows, 3);
    for (int i = 0; i < rows; ++i)
      for (int j = 0; j < 3; ++j) z.at(i, j) = j + 1;
    std::vector<int> labels(static_cast<std::size_t>(rows), -7);
    labels[0] = 2;
    const Result result = run(z, labels, {.label_smoothing = 0.1, .ignore_index = -7});
    EXPECT_TRUE(within(result.loss.item(), 0.50760596444438, 1e-6, wide()));
    for (int j = 0; j < 3; ++j) {
      EXPECT_TRUE(within(result.gradient.at(0, j), gradient.at(0, j), 1e-6, dtype()));
      if (rows == 2) {
        EXPECT_EQ(result.gradient.at(1, j), 0);
      }
    }
  }
}

TEST_P(SoftmaxCrossEntropyTest, IgnoredRowsDoNotCount) {
  const Values z(3, 3, {1, 2, 3, 0, 0, 0, 3, 1, 2});
  const std::vector<int> labels{2, -100, 1};
  const Values gradient(3, 3,
                        {0.045015286585190228999, 0.12236423552739882624, -0.16737952211258905524, 0, 0, 0,
                         0.33262047788741094476, -0.45498471341480977100, 0.12236423552739882624});
  expect(z, labels, {.ignore_index = -100}, 1.4076059644443803045, gradient);
  expect(z, labels, {.reduction = Reduction::sum, .ignore_index = -100}, 2.8152119288887606090,
         gradient.map([](double g) { return 2 * g; }));
}

TEST_P(SoftmaxCrossEntropyTest, EveryReductionTakesAnIgnoreIndexOutsideTheClasses) {
  const Values z = normal(6, 3, 1, dtype());
  for (const Reduction reduction : kReductions) {
    Tape tape(context_);
    const Var logits = tape.variable(tensor_of(context_, dtype(), z));
    const Tensor labels = Tensor::from<std::uint8_t>(context_, {6}, {0, 1, 255, 0, 1, 2});
    const Var loss = softmax_cross_entropy(logits, labels, {.reduction = reduction, .ignore_index = 255});
    tape.backward(loss, Tensor::full(context_, loss.shape(), wide(), 1));
    const Values gradient = values_of(tape.gradient(logits));
    const std::vector<int> wide_labels{0, 1, 255, 0, 1, 2};
    const Result same = run(z, wide_labels, {.reduction = reduction, .ignore_index = 255});
    EXPECT_EQ(values_of(loss.value()).elements, values_of(same.loss).elements) << "u8 labels are i32 labels";
    EXPECT_EQ(gradient.elements, same.gradient.elements);
    for (int j = 0; j < 3; ++j) EXPECT_EQ(gradient.at(2, j), 0);
    if (reduction == Reduction::none) {
      EXPECT_EQ(values_of(loss.value()).at(0, 2), 0);
    }
  }
}

TEST_P(SoftmaxCrossEntropyTest, AnIgnoredClassIsIgnored) {
  const Result result = run(Values(2, 3, {1, 2, 3, 3, 1, 2}), {0, 1}, {.ignore_index = 0});
  const Result alone = run(Values(1, 3, {3, 1, 2}), {1}, {});
  EXPECT_EQ(result.loss.item(), alone.loss.item());
  for (int j = 0; j < 3; ++j) {
    EXPECT_EQ(result.gradient.at(0, j), 0);
    EXPECT_EQ(result.gradient.at(1, j), alone.gradient.at(0, j));
  }
}

TEST_P(SoftmaxCrossEntropyTest, NothingThatCountsIsZero) {
  const Values z(2, 3, {1, 2, 3, kNan, kInf, -kInf});  // ignored rows may hold anything
  for (const Reduction reduction : kReductions)
    for (const double smoothing : {0.0, 0.1, 1.0}) {
      const Result result = run(z, {-1, -1}, {reduction, smoothing, -1, {}});
      for (const double loss : values_of(result.loss).elements) EXPECT_EQ(loss, 0);
      for (const double g : result.gradient.elements) EXPECT_EQ(g, 0);
    }
  for (const double smoothing : {0.0, 0.1})
    for (const double logit : {2.0, kNan}) {
      const Options options{.label_smoothing = smoothing, .class_weights = {1, 0, 1}};
      const Result weightless = run(Values(1, 3, {1, logit, 3}), {1}, options);
      EXPECT_EQ(weightless.loss.item(), 0) << "a mean over weight 0";
      for (const double g : weightless.gradient.elements) EXPECT_EQ(g, 0);
    }
}

TEST_P(SoftmaxCrossEntropyTest, ClassWeightsDivideByTheirSum) {
  expect(Values(2, 3, {1, 2, 3, 3, 1, 2}), {0, 2}, {.class_weights = {1, 2, 4}}, 1.6076059644443803045,
         Values(2, 3,
                {-0.18199388536592390840, 0.048945694210959530495, 0.13304819115496437791, 0.53219276461985751162,
                 0.072024458536304366398, -0.60421722315616187802}));
}

TEST_P(SoftmaxCrossEntropyTest, ClassWeightsWithSmoothingAndIgnoredRows) {
  for (const bool ignored : {false, true}) {
    Values z(ignored ? 3 : 2, 3);
    for (std::int64_t i = 0; i < z.rows; ++i)
      for (int j = 0; j < 3; ++j) z.at(i, j) = j + 1;
    const std::vector<int> labels = ignored ? std::vector<int>{0, 2, -1} : std::vector<int>{0, 2};
    Options options{.ignore_index = -1, .class_weights = {1, 2, 3}};
    EXPECT_TRUE(within(run(z, labels, options).loss.item(), 0.90760596444438, 1e-6, wide()));
    options.label_smoothing = 0.1;
    EXPECT_TRUE(within(run(z, labels, options).loss.item(), 0.92427263, 1e-6, wide()));
  }
}

TEST_P(SoftmaxCrossEntropyTest, SubtractsEachRowsOwnMaximum) {
  const double shift = dtype() == Dtype::bf16 ? 256 : 1000;  // 1001 is no bf16
  const double step = dtype() == Dtype::bf16 ? 2 : 1;
  const Result result =
      run(Values(2, 2, {shift, shift + step, -shift - step, -shift}), {0, 0}, {.reduction = Reduction::none});
  const double p = 1 / (1 + std::exp(step));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(within(result.gradient.at(i, 0), p - 1, 9 * accumulation_roundoff(dtype()), dtype()));
    EXPECT_TRUE(within(result.gradient.at(i, 1), 1 - p, 9 * accumulation_roundoff(dtype()), dtype()));
  }
}

TEST_P(SoftmaxCrossEntropyTest, OneClassHasNoLoss) {
  const Result result = run(Values(3, 1, {5, -3, 0}), {0, 0, 0}, {.label_smoothing = 0.1});
  EXPECT_EQ(result.loss.item(), 0);
  EXPECT_TRUE(equal(result.gradient, Values(3, 1), dtype()));
}

TEST_P(SoftmaxCrossEntropyTest, AnEmptyBatchHasLossZero) {
  for (const Reduction reduction : kReductions) {
    const Result result = run(Values(0, 3), {}, {.reduction = reduction});
    if (reduction != Reduction::none) {
      EXPECT_EQ(result.loss.item(), 0);
    }
  }
  // Without classes there is no label to have, but rows may be ignored.
  EXPECT_EQ(run(Values(2, 0), {-1, -1}, {.label_smoothing = 0.1, .ignore_index = -1}).loss.item(), 0);
  // A GPU says so when the result is read.
  EXPECT_THROW(run(Values(1, 0), {0}, {}).loss.item(), ValueError);
}

TEST_P(SoftmaxCrossEntropyTest, KeepsItsBoundsForAnyOptionsAndSizes) {
  // Sizes around lanes (16) and blocks (512), and a vocabulary.
  for (const std::int64_t classes : {1, 2, 10, 15, 16, 17, 511, 512, 513, 1000, 50257}) {
    const std::int64_t batch = classes > 1000 ? 3 : 9;
    const Values z = normal(batch, classes, static_cast<std::uint64_t>(classes), dtype()).map([&](double v) {
      return on_grid(4 * v, dtype());
    });
    std::vector<int> labels;
    std::vector<double> weights;
    for (std::int64_t i = 0; i < batch; ++i) labels.push_back(static_cast<int>(i * 7919 % classes));
    for (std::int64_t j = 0; j < classes; ++j) weights.push_back(static_cast<double>(j % 5) / 2);
    labels[1] = -9;
    for (const double smoothing : {0.0, 0.125, 1.0})
      for (const bool weighted : {false, true}) {
        Options options{.label_smoothing = smoothing, .ignore_index = -9};
        if (weighted) options.class_weights = weights;
        const Reference reference(z, labels, options, dtype());
        for (const Reduction reduction : kReductions) {
          options.reduction = reduction;
          const Result result = run(z, labels, options);
          const double divisor = reduction == Reduction::mean ? reference.total_weight : 1;
          if (divisor == 0) continue;  // tested above
          if (reduction == Reduction::none) {
            EXPECT_TRUE(near(values_of(result.loss), reference.loss, reference.loss_bound, wide()));
          } else {
            const double loss = reference.total() / divisor;
            EXPECT_TRUE(within(result.loss.item(), loss, reference.total_bound() / divisor, wide()))
                << result.loss.item() << " for " << loss;
          }
          const double u = accumulation_roundoff(dtype());
          const Values gradient = reference.gradient.map([&](double g) { return g / divisor; });
          const Values bound = reference.gradient_bound.zip(
              gradient, [&](double t, double g) { return t / divisor + 2 * u * std::fabs(g); });
          EXPECT_TRUE(near(result.gradient, gradient, bound, dtype()))
              << classes << " classes, smoothing " << smoothing;
        }
      }
  }
}

TEST_P(SoftmaxCrossEntropyTest, ExtremesNeverTurnIntoSomethingElse) {
  // Every triple of these logits; the definition, in extended precision, says what must come out.
  const double tiny = dtype() == Dtype::f64 ? 0x1p-1074 : dtype() == Dtype::f16 ? 0x1p-24 : 0x1p-133;
  std::vector<double> levels;
  for (const double level : {0.0, tiny, 1.0, 88.0, 1e4, 65504.0, 1e30, kInf}) {
    levels.push_back(on_grid(level, dtype()));
    levels.push_back(on_grid(-level, dtype()));
  }
  levels.push_back(kNan);
  const auto n = static_cast<std::int64_t>(levels.size());
  Values z(n * n * n, 3);
  std::vector<int> labels;
  for (std::int64_t i = 0; i < z.rows; ++i) {
    z.at(i, 0) = levels[static_cast<std::size_t>(i % n)];
    z.at(i, 1) = levels[static_cast<std::size_t>(i / n % n)];
    z.at(i, 2) = levels[static_cast<std::size_t>(i / n / n)];
    labels.push_back(static_cast<int>(i % 3));
  }
  for (const double smoothing : {0.0, 0.25}) {
    const Options options{.reduction = Reduction::none, .label_smoothing = smoothing};
    Reference reference(z, labels, options, dtype());
    for (std::int64_t i = 0; i < z.rows; ++i) {
      // std::max may pass over a NaN; a row that has one is NaN throughout.
      if (!std::isnan(z.at(i, 0)) && !std::isnan(z.at(i, 1)) && !std::isnan(z.at(i, 2))) continue;
      reference.loss.at(0, i) = kNan;
      for (int j = 0; j < 3; ++j) reference.gradient.at(i, j) = kNan;
    }
    const Result result = run(z, labels, options);
    EXPECT_TRUE(near(values_of(result.loss), reference.loss, reference.loss_bound, wide()));
    EXPECT_TRUE(near(result.gradient, reference.gradient, reference.gradient_bound, dtype()));
  }
}

TEST_P(SoftmaxCrossEntropyTest, EachRowTakesItsOwnUpstreamGradient) {
  const Values z(3, 2, {0, 0, 0, 0, 0, 0});
  Tape tape(context_);
  const Var logits = tape.variable(tensor_of(context_, dtype(), z));
  const Tensor labels = Tensor::from(context_, {3}, {0, 1, -1});
  const Var loss = softmax_cross_entropy(logits, labels, {.reduction = Reduction::none, .ignore_index = -1});
  tape.backward(loss, tensor_of(context_, {3}, wide(), Values(1, 3, {2, -4, kNan})));
  EXPECT_TRUE(equal(values_of(tape.gradient(logits)), Values(3, 2, {-1, 1, -2, 2, 0, 0}), dtype()))
      << "an ignored row has gradient 0, whatever arrives";
}

TEST_P(SoftmaxCrossEntropyTest, GradientIsAddedToWhatWasContributed) {
  Tape tape(context_);
  const Var logits = tape.variable(tensor_of(context_, dtype(), Values(2, 2)));
  const Tensor labels = Tensor::from(context_, {2}, {0, -1});
  const Var loss = softmax_cross_entropy(logits, labels, {.ignore_index = -1});
  tape.backward(4 * loss + 3 * sum(logits));
  EXPECT_TRUE(equal(values_of(tape.gradient(logits)), Values(2, 2, {1, 5, 3, 3}), dtype()));
}

TEST_P(SoftmaxCrossEntropyTest, ParameterGradientsAreWide) {
  ParameterSet set(context_, dtype());
  const Parameter p = set.add("logits", {1, 3}, [](std::span<float> values) { values[0] = values[1] = values[2] = 0; });
  Tape tape(context_);
  const Var loss = softmax_cross_entropy(tape.parameter(p), Tensor::from(context_, {1}, {0}));
  tape.backward(loss);
  EXPECT_EQ(p.gradient().dtype(), wide());
  EXPECT_TRUE(within(values_of(p.gradient()).at(0, 1), 1.0 / 3, 4 * accumulation_roundoff(dtype()), wide()));
}

TEST_P(SoftmaxCrossEntropyTest, AnyNumberOfThreadsGivesTheSameBits) {
  const Values z = normal(70, 700, 3, dtype());
  std::vector<int> labels;
  for (int i = 0; i < 70; ++i) labels.push_back(i * 31 % 700);
  std::vector<std::vector<double>> losses, gradients;
  for (const int threads : {1, 2, 3, 4, 8}) {
    const Context context = Context::cpu({.threads = threads});
    Tape tape(context);
    const Var logits = tape.variable(tensor_of(context, dtype(), z));
    const Var loss = softmax_cross_entropy(logits, Tensor::from(context, {70}, labels), {.label_smoothing = 0.1});
    tape.backward(loss);
    losses.push_back({loss.item()});
    gradients.push_back(values_of(tape.gradient(logits)).elements);
  }
  for (std::size_t i = 1; i < losses.size(); ++i) {
    EXPECT_EQ(losses[i], losses[0]);
    EXPECT_EQ(gradients[i], gradients[0]);
  }
}

TEST_P(SoftmaxCrossEntropyTest, SavesTwoNumbersARowBesideItsOperands) {
  Tape tape(context_);
  const Tensor z = tensor_of(context_, dtype(), normal(8, 5, 1, dtype()));
  const Tensor labels = Tensor::zeros(context_, {8}, Dtype::i32);
  softmax_cross_entropy(tape.variable(z), labels);
  const std::int64_t expected = z.bytes() + labels.bytes() + 17 * static_cast<std::int64_t>(size_of(wide()));
  EXPECT_EQ(tape.saved_bytes(), expected);
  softmax_cross_entropy(tape.input(z), labels);
  EXPECT_EQ(tape.saved_bytes(), expected);
}

/// The kernels on padded, unaligned, guarded memory.
class SoftmaxCrossEntropyKernelTest : public EachDtype {
 protected:
  detail::ThreadPool pool_{3};
  CpuExecution cpu_{pool_};
};
FUSEGRAD_EACH_DTYPE(SoftmaxCrossEntropyKernelTest);

TEST_P(SoftmaxCrossEntropyKernelTest, WritesItsOutputsAndNothingElse) {
  for (const std::int64_t classes : {1, 3, 16, 31, 600}) {
    const std::int64_t batch = 5;
    const Values z = normal(batch, classes, 1, dtype());
    const Values before = integers(batch, classes, 2, 4);
    const GuardedMatrix logits(dtype(), z, {.padding = 3, .offset = 1});
    std::vector<std::int32_t> labels;
    for (int i = 0; i < batch; ++i) labels.push_back(static_cast<std::int32_t>(i % classes));
    const kernels::SoftmaxCrossEntropy loss{
        .logits = logits.matrix(), .labels = {labels.data(), batch, Dtype::i32}, .reduction = Reduction::none};
    GuardedMatrix y(wide(), 1, batch);
    GuardedMatrix statistics(wide(), 1, 2 * batch + 1);
    kernels::softmax_cross_entropy_forward(cpu_, {.loss = loss, .statistics = statistics.vector(), .y = y.vector()});
    const Reference reference(z, labels, {}, dtype());
    EXPECT_TRUE(near(y.values(), reference.loss, reference.loss_bound, wide()));
    EXPECT_TRUE(y.intact());
    EXPECT_TRUE(statistics.intact());

    const GuardedMatrix dy(wide(), Values(1, batch).map([](double) { return 1.0; }));
    for (const Dtype output : {dtype(), wide()})
      for (const int former : {0, 1, 2}) {  // none, elsewhere, in place
        const GuardedMatrix elsewhere(output, before, {.padding = 1});
        GuardedMatrix d(output, batch, classes, {.padding = 2, .offset = 1});
        if (former == 2) d.fill(before);
        kernels::SoftmaxCrossEntropyBackward args{
            .loss = loss, .statistics = statistics.vector(), .dy = dy.vector(), .d = d.matrix()};
        if (former == 1) args.c = elsewhere.matrix();
        if (former == 2) args.c = d.matrix();
        kernels::softmax_cross_entropy_backward(cpu_, args);
        const Values expected = former == 0 ? reference.gradient : sum(reference.gradient, before);
        const Values bound =
            reference.gradient_bound.map([&](double t) { return t + 5 * accumulation_roundoff(dtype()); });
        EXPECT_TRUE(near(d.values(), expected, bound, output)) << classes << " classes, c " << former;
        EXPECT_TRUE(d.intact());
      }
  }
}

class SoftmaxCrossEntropyErrorTest : public testing::Test {
 protected:
  Var logits() { return tape_.variable(Tensor::zeros(context_, {4, 5}, Dtype::f32)); }
  Tensor labels(std::initializer_list<int> values) const {
    return Tensor::from(context_, {static_cast<std::int64_t>(values.size())}, values);
  }
  Tensor weights(std::initializer_list<float> values) const {
    return Tensor::from(context_, {static_cast<std::int64_t>(values.size())}, values);
  }

  Context context_ = Context::cpu({.threads = 1});
  Tape tape_{context_};
};

TEST_F(SoftmaxCrossEntropyErrorTest, NamesTheRowAndTheValueOfAWrongLabel) {
  const Var z = logits();
  EXPECT_THAT(
      [&] {
        softmax_cross_entropy(z, labels({0, -1, -4, 3}), {.ignore_index = -1});
      },
      ThrowsMessage<ValueError>("softmax_cross_entropy: label -4 in row 2 is not one of 5 classes"));
  EXPECT_THAT(
      [&] {
        softmax_cross_entropy(z, labels({0, 1, 2, 5}));
      },
      ThrowsMessage<ValueError>("softmax_cross_entropy: label 5 in row 3 is not one of 5 classes"));
  EXPECT_THAT(
      [&] {
        softmax_cross_entropy(z, labels({-1, 1, 2, 3}));
      },
      ThrowsMessage<ValueError>("softmax_cross_entropy: label -1 in row 0 is not one of 5 classes"));
  EXPECT_THROW(softmax_cross_entropy(z, Tensor::from<std::uint8_t>(context_, {4}, {0, 5, 1, 2})), ValueError);
  EXPECT_THROW(softmax_cross_entropy(z, labels({0, 1, 2, INT32_MIN})), ValueError);
  EXPECT_EQ(tape_.size(), 1) << "a refused call records nothing";
  tape_.backward(softmax_cross_entropy(z, labels({0, 1, 2, 4})));  // and the tape still works
}

TEST_F(SoftmaxCrossEntropyErrorTest, RefusesLabelsOfAnotherKind) {
  const Var z = logits();
  EXPECT_THAT([&] { softmax_cross_entropy(z, Tensor::full(context_, {4}, Dtype::f32, 1.5)); },
              ThrowsMessage<DtypeError>("softmax_cross_entropy: labels must be class indices, i32 or u8, got f32"));
  EXPECT_THAT(
      [&] {
        softmax_cross_entropy(z, labels({0, 1, 2}));
      },
      ThrowsMessage<ShapeError>("softmax_cross_entropy: labels must be [4] (4 = rows of logits), got [3]"));
  EXPECT_THROW(softmax_cross_entropy(z, labels({0, 1, 2, 3}).reshape({4, 1})), ShapeError);
  EXPECT_THROW(softmax_cross_entropy(z, Tensor()), StateError);
  const Context other = Context::cpu({.threads = 1});
  EXPECT_THROW(softmax_cross_entropy(z, Tensor::zeros(other, {4}, Dtype::i32)), DeviceError);
  EXPECT_EQ(tape_.size(), 1);
}

TEST_F(SoftmaxCrossEntropyErrorTest, RefusesLogitsOfAnotherKind) {
  EXPECT_THAT([&] { softmax_cross_entropy(tape_.variable(Tensor::zeros(context_, {4}, Dtype::f32)), labels({0})); },
              ThrowsMessage<ShapeError>("softmax_cross_entropy: logits must be [batch, classes], got [4]"));
  EXPECT_THROW(softmax_cross_entropy(Var(), labels({0})), StateError);
}

TEST_F(SoftmaxCrossEntropyErrorTest, RefusesOptionsOutOfRange) {
  const Var z = logits();
  const Tensor right = labels({0, 1, 2, 3});
  for (const double smoothing : {-0.1, 1.1, kNan, kInf}) {
    EXPECT_THROW(softmax_cross_entropy(z, right, {.label_smoothing = smoothing}), ValueError) << smoothing;
  }
  EXPECT_THAT(
      [&] {
        softmax_cross_entropy(z, right, {.class_weights = weights({1, 1, -1, 1, 1})});
      },
      ThrowsMessage<ValueError>("softmax_cross_entropy: class weight -1 of class 2 is not a finite number of at "
                                "least 0"));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EXPECT_THROW(softmax_cross_entropy(z, right, {.class_weights = weights({1, 1, 1, 1, bad})}), ValueError);
  }
  EXPECT_THROW(softmax_cross_entropy(z, right, {.class_weights = weights({1, 1, 1, 1})}), ShapeError);
  EXPECT_THROW(softmax_cross_entropy(z, right, {.class_weights = Tensor::zeros(context_, {5}, Dtype::f64)}),
               DtypeError);
  EXPECT_THROW(softmax_cross_entropy(z, right, {.class_weights = Tensor::zeros(context_, {5}, Dtype::f16)}),
               DtypeError);
  const Context other = Context::cpu({.threads = 1});
  EXPECT_THROW(softmax_cross_entropy(z, right, {.class_weights = Tensor::zeros(other, {5}, Dtype::f32)}), DeviceError);
  EXPECT_EQ(tape_.size(), 1);
}

TEST(SoftmaxCrossEntropyGradientTest, AgreesWithFiniteDifferences) {
  const Context context = Context::cpu({.threads = 1});
  const Tensor labels = Tensor::from(context, {4}, {0, 2, -1, 4});
  const Tensor weights = Tensor::from(context, {5}, {0.5, 2.0, 1.0, 0.0, 3.0});
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    for (const Reduction reduction : kReductions)
      for (const bool full : {false, true}) {
        SoftmaxCrossEntropyOptions options{.reduction = reduction, .ignore_index = -1};
        if (full) options.label_smoothing = 0.2, options.class_weights = weights;
        const Tensor inputs[] = {tensor_of(context, Dtype::f64, normal(4, 5, seed, Dtype::f64))};
        const auto f = [&](Tape&, std::span<const Var> x) { return softmax_cross_entropy(x[0], labels, options); };
        const GradientCheckReport report = gradient_check(f, inputs);
        EXPECT_TRUE(report.passed) << report.worst;
        EXPECT_EQ(report.smooth, 20);
      }
}

}  // namespace
}  // namespace fusegrad::test
