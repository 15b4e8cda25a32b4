// Softmax cross-entropy, row by row: forward reads a row twice (largest logit; sum of exponentials), backward once.
//
// The row's sum is kept, not its logarithm: the gradient needs exp(z - m) / s, and from log s it would inherit the
// rounding of the logarithm, an absolute error, as a relative one.
//
// Rows are read in blocks that are filled up to whole groups of lanes with -inf, which is no maximum and has the
// exponential 0: rows of ten classes are as common as rows of thousands, and a loop over ten elements costs more than
// one over sixteen.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fusegrad/ops/cpu/exponential.h>
#include <fusegrad/ops/cpu/reduce.h>
#include <fusegrad/ops/softmax_cross_entropy_kernels.h>

namespace fusegrad::kernels {
namespace {

constexpr int kLanes = 16;
constexpr std::int64_t kTaskElements = 8192;

std::int64_t label_of(const SoftmaxCrossEntropy& loss, std::int64_t row) {
  if (loss.labels.dtype == Dtype::u8) return static_cast<const std::uint8_t*>(loss.labels.data)[row];
  return static_cast<const std::int32_t*>(loss.labels.data)[row];
}

/// w_label.
double weight_of(const SoftmaxCrossEntropy& loss, std::int64_t label) {
  return loss.class_weights.data ? read(loss.class_weights.data, loss.class_weights.dtype, label) : 1;
}

/// weight * value, and 0 for weight 0 even if the value is infinite.
double weighted(double weight, double value) { return weight == 0 ? 0 : weight * value; }

/// a / C, or 0 where there is no smoothing.
double smoothing_share(const SoftmaxCrossEntropy& loss) {
  return loss.label_smoothing == 0 ? 0 : loss.label_smoothing / static_cast<double>(loss.logits.cols);
}

/// W, the sum of all class weights.
double sum_of_class_weights(const SoftmaxCrossEntropy& loss) {
  if (!loss.class_weights.data) return static_cast<double>(loss.logits.cols);
  PairwiseSum sum;
  for (std::int64_t j = 0; j < loss.logits.cols; ++j) sum.add(weight_of(loss, j));
  return sum.value();
}

/// The larger; b if a is NaN.
template <class T>
T larger(T a, T b) {
  return a > b ? a : b;
}

/// Calls f(row) for every row, on the pool's threads.
template <class F>
void for_each_row(const CpuExecution& execution, const ConstMatrix& logits, F&& f) {
  const std::int64_t rows_per_task = std::max<std::int64_t>(kTaskElements / std::max<std::int64_t>(logits.cols, 1), 1);
  execution.pool.run((logits.rows + rows_per_task - 1) / rows_per_task, [&](std::int64_t task, int) {
    const std::int64_t end = std::min((task + 1) * rows_per_task, logits.rows);
    for (std::int64_t row = task * rows_per_task; row < end; ++row) f(row);
  });
}

/// Part of a row.
template <class Compute>
struct Block {
  std::int64_t first = 0;  ///< column
  std::int64_t count = 0;
  std::int64_t filled = 0;  ///< count rounded up to whole lanes; z is -inf from count on
  const Compute* z = nullptr;
};

/// Calls f(block) for every block of a row.
template <class Compute, class F>
void for_each_block(const ConstMatrix& logits, std::int64_t row, F&& f) {
  alignas(64) Compute buffer[kBlock];
  for (std::int64_t first = 0; first < logits.cols; first += kBlock) {
    const std::int64_t count = std::min(kBlock, logits.cols - first);
    const std::int64_t filled = (count + kLanes - 1) / kLanes * kLanes;
    const Compute* z = load(logits.data, logits.dtype, row * logits.ld + first, count, buffer);
    if (filled != count) {
      if (z != buffer) std::copy_n(z, count, buffer);
      std::fill(buffer + count, buffer + filled, -std::numeric_limits<Compute>::infinity());
      z = buffer;
    }
    f(Block<Compute>{first, count, filled, z});
  }
}

template <class Compute>
Compute largest(const Block<Compute>& block) {
  Compute lanes[kLanes];
  std::copy_n(block.z, kLanes, lanes);
  for (std::int64_t i = kLanes; i < block.filled; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = larger(lanes[lane], block.z[i + lane]);
  }
  return *std::max_element(lanes, lanes + kLanes);
}

template <class Compute>
double sum_of_exponentials(const Block<Compute>& block, Compute m) {
  alignas(64) Compute exponentials[kBlock];
  for (std::int64_t j = 0; j < block.filled; ++j) exponentials[j] = exp_nonpositive(block.z[j] - m);
  return block_sum(exponentials, block.filled);
}

/// sum of w_j (m - z_j), the part of the smoothed loss that needs every logit.
template <class Compute>
double weighted_distance(const SoftmaxCrossEntropy& loss, std::int64_t row, double m) {
  const ConstVector& weights = loss.class_weights;
  PairwiseSum sum;
  for_each_block<Compute>(loss.logits, row, [&](const Block<Compute>& block) {
    alignas(64) double terms[kBlock];
    for (std::int64_t j = 0; j < block.count; ++j) terms[j] = m - double{block.z[j]};
    if (weights.data) {
      alignas(64) double buffer[kBlock];
      const double* w = load(weights.data, weights.dtype, block.first, block.count, buffer);
      for (std::int64_t j = 0; j < block.count; ++j) terms[j] = weighted(w[j], terms[j]);
    }
    sum.add(block_sum(terms, block.count));
  });
  return sum.value();
}

struct Row {
  double max = 0;
  double sum = 1;
  double loss = 0;
  double weight = 0;
};

template <class Compute>
Row forward_row(const SoftmaxCrossEntropy& loss, std::int64_t row, double share, double class_weight_sum) {
  const std::int64_t label = label_of(loss, row);
  if (label == loss.ignore_index) return {};
  Compute m = -std::numeric_limits<Compute>::infinity();
  for_each_block<Compute>(loss.logits, row, [&](const Block<Compute>& block) { m = larger(m, largest(block)); });
  PairwiseSum sum;
  for_each_block<Compute>(loss.logits, row,
                          [&](const Block<Compute>& block) { sum.add(sum_of_exponentials(block, m)); });
  Row result{.max = static_cast<double>(m), .sum = sum.value(), .weight = weight_of(loss, label)};
  const double log_sum = std::log(result.sum);
  const double target = read(loss.logits.data, loss.logits.dtype, row * loss.logits.ld + label);
  result.loss = weighted((1 - loss.label_smoothing) * result.weight, log_sum + (result.max - target));
  if (share != 0) {
    result.loss += share * (weighted_distance<Compute>(loss, row, result.max) + weighted(class_weight_sum, log_sum));
  }
  return result;
}

template <class Compute>
void forward_in(const CpuExecution& execution, const SoftmaxCrossEntropyForward& args) {
  const SoftmaxCrossEntropy& loss = args.loss;
  const Vector& statistics = args.statistics;
  const std::int64_t batch = loss.logits.rows;
  const double share = smoothing_share(loss);
  const double class_weight_sum = share == 0 ? 0 : sum_of_class_weights(loss);
  auto* losses =
      static_cast<double*>(execution.pool.shared_scratch(static_cast<std::size_t>(2 * batch) * sizeof(double)));
  double* weights = losses + batch;
  for_each_row(execution, loss.logits, [&](std::int64_t row) {
    const Row result = forward_row<Compute>(loss, row, share, class_weight_sum);
    losses[row] = result.loss;
    weights[row] = result.weight;
    if (!statistics.data) return;
    write(result.max, statistics.data, statistics.dtype, row);
    write(result.sum, statistics.data, statistics.dtype, batch + row);
  });
  PairwiseSum total_loss;
  PairwiseSum total_weight;
  for (std::int64_t row = 0; row < batch; ++row) {
    total_loss.add(losses[row]);
    total_weight.add(weights[row]);
    if (loss.reduction == Reduction::none) write(losses[row], args.y.data, args.y.dtype, row);
  }
  if (statistics.data) write(total_weight.value(), statistics.data, statistics.dtype, 2 * batch);
  if (loss.reduction == Reduction::none) return;
  const double divisor = loss.reduction == Reduction::mean ? total_weight.value() : 1;
  write(divisor == 0 ? 0 : total_loss.value() / divisor, args.y.data, args.y.dtype);
}

/// Row `row` of the gradient, with `g` the gradient of the row's loss.
template <class Compute>
void backward_row(const SoftmaxCrossEntropyBackward& args, std::int64_t row, double g, double share,
                  double class_weight_sum) {
  const SoftmaxCrossEntropy& loss = args.loss;
  const std::int64_t label = label_of(loss, row);
  const double hit = label == loss.ignore_index ? 0 : (1 - loss.label_smoothing) * weight_of(loss, label);
  const double weight = label == loss.ignore_index ? 0 : hit + share * class_weight_sum;
  const ConstVector& statistics = args.statistics;
  const auto m = static_cast<Compute>(read(statistics.data, statistics.dtype, row));
  const double sum = read(statistics.data, statistics.dtype, loss.logits.rows + row);
  const auto factor = static_cast<Compute>(weight * g / sum);
  const auto uniform = static_cast<Compute>(share * g);
  const ConstVector& weights = loss.class_weights;
  for_each_block<Compute>(loss.logits, row, [&](const Block<Compute>& block) {
    const std::int64_t count = block.count;
    alignas(64) Compute gradient[kBlock];
    alignas(64) Compute buffer[kBlock];
    if (weight == 0) {
      std::fill_n(gradient, count, Compute{0});
    } else {
      for (std::int64_t j = 0; j < block.filled; ++j) gradient[j] = exp_nonpositive(block.z[j] - m) * factor;
      if (share != 0 && !weights.data) {
        for (std::int64_t j = 0; j < count; ++j) gradient[j] -= uniform;
      } else if (share != 0) {
        const Compute* w = load(weights.data, weights.dtype, block.first, count, buffer);
        for (std::int64_t j = 0; j < count; ++j) gradient[j] -= uniform * w[j];
      }
      const std::int64_t place = label - block.first;
      if (place >= 0 && place < count) gradient[place] -= static_cast<Compute>(hit * g);
    }
    const Compute* c = load(args.c.data, args.c.dtype, row * args.c.ld + block.first, count, buffer);
    Compute* d = destination(args.d.data, args.d.dtype, row * args.d.ld + block.first, gradient);
    FUSEGRAD_INDEPENDENT
    for (std::int64_t j = 0; j < count; ++j) d[j] = gradient[j] + c[j];
    store(d, args.d.data, args.d.dtype, row * args.d.ld + block.first, count);
  });
}

template <class Compute>
void backward_in(const CpuExecution& execution, const SoftmaxCrossEntropyBackward& args) {
  const SoftmaxCrossEntropy& loss = args.loss;
  double share = smoothing_share(loss);
  const double class_weight_sum = share == 0 ? 0 : sum_of_class_weights(loss);
  const bool each = loss.reduction == Reduction::none;
  double g = each ? 0 : read(args.dy.data, args.dy.dtype);
  if (loss.reduction == Reduction::mean) {
    const double total = read(args.statistics.data, args.statistics.dtype, 2 * loss.logits.rows);
    g = total == 0 ? 0 : g / total;
    if (total == 0) share = 0;  // no row counts, not even by its smoothed part
  }
  for_each_row(execution, loss.logits, [&](std::int64_t row) {
    backward_row<Compute>(args, row, each ? read(args.dy.data, args.dy.dtype, row) : g, share, class_weight_sum);
  });
}

}  // namespace

void softmax_cross_entropy_forward(const CpuExecution& execution, const SoftmaxCrossEntropyForward& args) {
  if (args.loss.logits.dtype == Dtype::f64) return forward_in<double>(execution, args);
  forward_in<float>(execution, args);
}

void softmax_cross_entropy_backward(const CpuExecution& execution, const SoftmaxCrossEntropyBackward& args) {
  if (args.loss.logits.dtype == Dtype::f64) return backward_in<double>(execution, args);
  backward_in<float>(execution, args);
}

}  // namespace fusegrad::kernels
