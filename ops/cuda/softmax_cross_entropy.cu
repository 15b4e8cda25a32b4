// Softmax cross-entropy: forward and backward each read a row of logits once (with label smoothing forward reads it
// again, from cache).
//
// A team of threads owns a row: a warp, or a whole block where there are few and long rows. Each thread keeps the
// largest logit that it has seen and the sum of exponentials relative to it, and rescales the sum when a larger one
// comes. Exponentials and the sum of a group of packets in fp32 (fp64 for f64), all other sums and logarithms in fp64,
// in an order that the shape alone decides: a thread's columns, the team, a block's rows, the blocks. One rounding.
//
// Labels and class weights are checked here, because they may have been made on the GPU: a bad one is reported as the
// context's fault, its row has loss NaN and gradient 0.
#include <algorithm>

#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/ops/cuda/access.cuh>
#include <fusegrad/ops/cuda/block_reduce.cuh>
#include <fusegrad/ops/cuda/fault.cuh>
#include <fusegrad/ops/cuda/last_block.cuh>
#include <fusegrad/ops/cuda/launch.cuh>
#include <fusegrad/ops/softmax_cross_entropy_kernels.h>

namespace fusegrad::kernels {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 528;  // one wave on 132 multiprocessors
constexpr std::int64_t kLongRow = 2048;    // classes; a warp has 64 elements a lane then
constexpr std::int64_t kManyRows = kMostBlocks * kThreads / kWarpSize / 2;  // enough to keep half the warps busy

constexpr const char* kBadLabel = "softmax_cross_entropy: label {1} in row {0} is not one of {2} classes";
constexpr const char* kBadWeight =
    "softmax_cross_entropy: class weight {1} of class {0} is not a finite number of at least 0";

/// Packets of a row that a thread has in flight.
constexpr int kGroup = 4;

constexpr float kLog2E = 1.44269504f;

/// e^x, for x <= 0 in fp32 by the hardware's power of 2: 2 ulp, and |x| u because x is scaled first.
__device__ inline float exponential(float x) { return exp2f(x * kLog2E); }
__device__ inline double exponential(double x) { return exp(x); }

/// The same where it is added to numbers that make a sum of at least 1: below 2^-126 it may be 0.
__device__ inline float term(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * kLog2E));
  return y;
}
__device__ inline double term(double x) { return exp(x); }

/// Threads that share a row.
template <int kTeam>
struct Team {
  static constexpr int kRows = kThreads / kTeam;  // of a block

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kTeam; }
  static __device__ std::int64_t first_row() { return std::int64_t{blockIdx.x} * kRows + threadIdx.x / kTeam; }
  static __device__ std::int64_t row_step() { return std::int64_t{gridDim.x} * kRows; }
  template <class T>
  static __device__ T sum(T value) {
    if constexpr (kTeam == kWarpSize) {
      return warp_sum(value);
    } else {
      return block_sum<kThreads>(value);
    }
  }
  template <class T>
  static __device__ T max(T value) {
    if constexpr (kTeam == kWarpSize) {
      return warp_max(value);
    } else {
      return block_max<kThreads>(value);
    }
  }
};

/// What is the same for all rows.
struct Constants {
  double share;             ///< label smoothing / classes
  double class_weight_sum;  ///< where there is smoothing
};

__device__ double weight_of(const SoftmaxCrossEntropy& loss, std::int64_t label) {
  return loss.class_weights.data ? load_one<double>(loss.class_weights, label) : 1;
}

/// weight * value, and 0 for weight 0 even if the value is infinite.
__device__ double weighted(double weight, double value) { return weight == 0 ? 0 : weight * value; }

/// Called by all threads of a block.
__device__ Constants constants_of(const SoftmaxCrossEntropy& loss) {
  if (loss.label_smoothing == 0) return {0, 0};
  const auto classes = static_cast<double>(loss.logits.cols);
  double sum = classes;
  if (loss.class_weights.data) {
    sum = 0;
    for (std::int64_t j = threadIdx.x; j < loss.logits.cols; j += kThreads) sum += weight_of(loss, j);
    sum = block_sum<kThreads>(sum);
  }
  return {loss.label_smoothing / classes, sum};
}

__device__ std::int64_t label_of(const SoftmaxCrossEntropy& loss, std::int64_t row) {
  if (loss.labels.dtype == Dtype::u8) return static_cast<const std::uint8_t*>(loss.labels.data)[row];
  return static_cast<const std::int32_t*>(loss.labels.data)[row];
}

__device__ bool is_class(const SoftmaxCrossEntropy& loss, std::int64_t label) {
  return label >= 0 && label < loss.logits.cols;
}

/// Reports weights that are none. Called by the threads of one block.
__device__ void check_class_weights(const SoftmaxCrossEntropy& loss, const FaultSite& bad_weight) {
  if (!loss.class_weights.data) return;
  for (std::int64_t j = threadIdx.x; j < loss.logits.cols; j += kThreads) {
    const double weight = weight_of(loss, j);
    if (!(weight >= 0 && weight < INFINITY)) bad_weight.report(j, static_cast<float>(weight));
  }
}

/// Calls f(first column, packets, valid) for each of the thread's groups of packets of a row; packet u starts `step`
/// columns after the one before, and the first `valid` are inside the row.
template <class Access, int kTeam, class F>
__device__ void for_each_group(const ConstMatrix& logits, std::int64_t row, const F& f) {
  constexpr int N = Access::kWidth;
  constexpr std::int64_t kStep = std::int64_t{kTeam} * N;
  for (std::int64_t first = Team<kTeam>::lane() * N; first < logits.cols; first += kGroup * kStep) {
    typename Access::Raw raw[kGroup];
    int valid = 0;
#pragma unroll
    for (int u = 0; u < kGroup; ++u) {
      if (first + u * kStep >= logits.cols) continue;
      raw[u] = Access::load(logits, row, first + u * kStep);
      valid = u + 1;
    }
    f(first, raw, valid);
  }
}

/// Adds up N terms, a power of two, as a balanced tree.
template <class Compute, int N>
__device__ Compute tree_sum(Compute (&terms)[N]) {
#pragma unroll
  for (int width = N / 2; width > 0; width /= 2) {
#pragma unroll
    for (int i = 0; i < width; ++i) terms[i] += terms[i + width];
  }
  return terms[0];
}

/// The largest of the logits so far and the sum of their exponentials relative to it.
template <class Access>
class Exponentials {
 public:
  using Compute = typename Access::Compute;

  __device__ void add(const typename Access::Raw (&raw)[kGroup], int valid, Dtype dtype) {
    constexpr int N = Access::kWidth;
    Compute largest = -INFINITY;
#pragma unroll
    for (int u = 0; u < kGroup; ++u) {
      if (u >= valid) continue;
      Compute z[N];
      Access::unpack(raw[u], dtype, z);
#pragma unroll
      for (int i = 0; i < N; ++i) largest = fmax(largest, z[i]);
    }
    largest = fmax(largest, max_);
    // -inf - -inf would be NaN; but the exponential of -inf is 0 relative to any number.
    const Compute base = largest == -INFINITY ? Compute{0} : largest;
    const Compute kept = term(max_ - base);
    max_ = largest;
    Compute sum = 0;
#pragma unroll
    for (int u = 0; u < kGroup; ++u) {
      if (u >= valid) continue;
      Compute terms[N];
      Access::unpack(raw[u], dtype, terms);
#pragma unroll
      for (int i = 0; i < N; ++i) terms[i] = term(terms[i] - base);
      sum += tree_sum(terms);
    }
    sum_ = sum_ * static_cast<double>(kept) + static_cast<double>(sum);
  }

  __device__ Compute max() const { return max_; }
  /// The sum relative to `max`, which is not smaller than max(). A sum of 0 stays 0, and that of a NaN stays NaN.
  __device__ double sum(Compute max) const { return max_ == max ? sum_ : sum_ * static_cast<double>(term(max_ - max)); }

 private:
  Compute max_ = -INFINITY;
  double sum_ = 0;
};

struct Row {
  double max;
  double sum;
  double loss;
  double weight;
};

template <class Access, int kTeam>
__device__ Row forward_row(const SoftmaxCrossEntropy& loss, std::int64_t row, std::int64_t label,
                           const Constants& constants, const FaultSite& bad_label) {
  using Compute = typename Access::Compute;
  if (label == loss.ignore_index) return {0, 1, 0, 0};
  if (!is_class(loss, label)) {
    if (Team<kTeam>::lane() == 0) bad_label.report(row, static_cast<std::int32_t>(label), loss.logits.cols);
    return {0, 1, NAN, 0};
  }
  const double target = load_one<double>({loss.logits.data, 0, loss.logits.dtype}, row * loss.logits.ld + label);
  Exponentials<Access> exponentials;
  for_each_group<Access, kTeam>(loss.logits, row,
                                [&](std::int64_t, const typename Access::Raw(&raw)[kGroup], int valid) {
                                  exponentials.add(raw, valid, loss.logits.dtype);
                                });
  const Compute m = Team<kTeam>::max(exponentials.max());
  const double sum = Team<kTeam>::sum(exponentials.sum(m));
  Row result{static_cast<double>(m), sum, 0, weight_of(loss, label)};
  const double log_sum = log(sum);
  result.loss = weighted((1 - loss.label_smoothing) * result.weight, log_sum + (result.max - target));
  if (constants.share == 0) return result;
  double distance = 0;  // sum of w_j (m - z_j)
  for_each_group<Access, kTeam>(loss.logits, row,
                                [&](std::int64_t first, const typename Access::Raw(&raw)[kGroup], int valid) {
                                  constexpr int N = Access::kWidth;
                                  for (int u = 0; u < valid; ++u) {
                                    Compute z[N];
                                    Access::unpack(raw[u], loss.logits.dtype, z);
                                    for (int i = 0; i < N; ++i) {
                                      const double weight = weight_of(loss, first + u * std::int64_t{kTeam} * N + i);
                                      distance += weighted(weight, static_cast<double>(m) - static_cast<double>(z[i]));
                                    }
                                  }
                                });
  distance = Team<kTeam>::sum(distance);
  result.loss += constants.share * (distance + weighted(constants.class_weight_sum, log_sum));
  return result;
}

/// Where blocks leave their sums, and the checks.
struct ForwardWork {
  double* losses;   ///< one a block
  double* weights;  ///< one a block
  unsigned* ticket;
  FaultSite bad_label;
  FaultSite bad_weight;
};

template <class Access, int kTeam>
__global__ void __launch_bounds__(kThreads, 4) forward_kernel(SoftmaxCrossEntropyForward args, ForwardWork work) {
  const SoftmaxCrossEntropy& loss = args.loss;
  const std::int64_t batch = loss.logits.rows;
  if (blockIdx.x == 0) check_class_weights(loss, work.bad_weight);
  const Constants constants = constants_of(loss);
  double losses = 0;
  double weights = 0;
  const std::int64_t first = Team<kTeam>::first_row();
  std::int64_t label = first < batch ? label_of(loss, first) : 0;
  for (std::int64_t row = first; row < batch; row += Team<kTeam>::row_step()) {
    // A row waits for its label before it is read; so the next one's is asked for now.
    const std::int64_t next = row + Team<kTeam>::row_step();
    const std::int64_t next_label = next < batch ? label_of(loss, next) : 0;
    const Row result = forward_row<Access, kTeam>(loss, row, label, constants, work.bad_label);
    label = next_label;
    if (Team<kTeam>::lane() != 0) continue;
    losses += result.loss;
    weights += result.weight;
    if (loss.reduction == Reduction::none) store_one(args.y, row, result.loss);
    if (!args.statistics.data) continue;
    store_one(args.statistics, row, result.max);
    store_one(args.statistics, batch + row, result.sum);
  }
  losses = block_sum<kThreads>(losses);
  weights = block_sum<kThreads>(weights);
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) {
      work.losses[blockIdx.x] = losses;
      work.weights[blockIdx.x] = weights;
    }
    if (!is_last_block(work.ticket, gridDim.x)) return;
    losses = 0;
    weights = 0;
    for (unsigned block = threadIdx.x; block < gridDim.x; block += kThreads) {
      losses += work.losses[block];
      weights += work.weights[block];
    }
    losses = block_sum<kThreads>(losses);
    weights = block_sum<kThreads>(weights);
  }
  if (threadIdx.x != 0) return;
  if (args.statistics.data) store_one(args.statistics, 2 * batch, weights);
  if (loss.reduction == Reduction::none) return;
  const double divisor = loss.reduction == Reduction::mean ? weights : 1;
  store_one(args.y, 0, divisor == 0 ? 0.0 : losses / divisor);
}

enum class Add : std::uint8_t { nothing, c };

template <class Access, int kTeam, Add add>
__device__ void backward_row(const SoftmaxCrossEntropyBackward& args, std::int64_t row, double g, double share,
                             double class_weight_sum) {
  using Compute = typename Access::Compute;
  constexpr int N = Access::kWidth;
  constexpr int kInFlight = add == Add::c ? kGroup / 2 : kGroup;
  const SoftmaxCrossEntropy& loss = args.loss;
  const std::int64_t label = label_of(loss, row);
  const bool counts = label != loss.ignore_index && is_class(loss, label);
  const double hit = counts ? (1 - loss.label_smoothing) * weight_of(loss, label) : 0;
  const double weight = counts ? hit + share * class_weight_sum : 0;
  const auto m = load_one<Compute>(args.statistics, row);
  const auto sum = load_one<double>(args.statistics, loss.logits.rows + row);
  const auto factor = convert<Compute>(weight * g / sum);
  const auto uniform = convert<Compute>(share * g);
  const auto hit_gradient = convert<Compute>(hit * g);
  const std::int64_t step = std::int64_t{kTeam} * N;
  for (std::int64_t first = Team<kTeam>::lane() * N; first < loss.logits.cols; first += kInFlight * step) {
    typename Access::Raw raw_z[kInFlight];
    [[maybe_unused]] typename Access::Raw raw_c[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (first + u * step >= loss.logits.cols) continue;
      raw_z[u] = Access::load(loss.logits, row, first + u * step);
      if constexpr (add == Add::c) raw_c[u] = Access::load(args.c, row, first + u * step);
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const std::int64_t column = first + u * step;
      if (column >= loss.logits.cols) continue;
      Compute z[N];
      Compute d[N];
      Access::unpack(raw_z[u], loss.logits.dtype, z);
#pragma unroll
      for (int i = 0; i < N; ++i) d[i] = weight != 0 ? exponential(z[i] - m) * factor : 0;
      if (weight != 0 && share != 0) {
        const bool weighted = loss.class_weights.data != nullptr;
#pragma unroll
        for (int i = 0; i < N; ++i)
          d[i] -= weighted ? uniform * load_one<Compute>(loss.class_weights, column + i) : uniform;
      }
      if (weight != 0 && label >= column && label < column + N) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          if (column + i == label) d[i] -= hit_gradient;
        }
      }
      if constexpr (add == Add::c) {
        Compute c[N];
        Access::unpack(raw_c[u], args.c.dtype, c);
#pragma unroll
        for (int i = 0; i < N; ++i) d[i] += c[i];
      }
      Access::store(args.d, row, column, d);
    }
  }
}

template <class Access, int kTeam, Add add>
__global__ void __launch_bounds__(kThreads, 4) backward_kernel(SoftmaxCrossEntropyBackward args) {
  const SoftmaxCrossEntropy& loss = args.loss;
  Constants constants = constants_of(loss);
  const bool each = loss.reduction == Reduction::none;
  double g = each ? 0 : load_one<double>(args.dy, 0);
  if (loss.reduction == Reduction::mean) {
    const auto total = load_one<double>(args.statistics, 2 * loss.logits.rows);
    g = total == 0 ? 0 : g / total;
    if (total == 0) constants.share = 0;  // no row counts, not even by its smoothed part
  }
  for (std::int64_t row = Team<kTeam>::first_row(); row < loss.logits.rows; row += Team<kTeam>::row_step()) {
    backward_row<Access, kTeam, add>(args, row, each ? load_one<double>(args.dy, row) : g, constants.share,
                                     constants.class_weight_sum);
  }
}

/// Calls f.template operator()<Access, kTeam>(blocks) with the way to walk `logits`. `vectors`: all operands have its
/// dtype and are aligned.
template <class F>
void visit_rows(const ConstMatrix& logits, bool vectors, F&& f) {
  const auto blocks = [&](int team) {
    return static_cast<unsigned>(
        std::clamp<std::int64_t>((logits.rows * team + kThreads - 1) / kThreads, 1, kMostBlocks));
  };
  detail::visit_floating(logits.dtype, [&]<class T>() {
    const bool block_a_row = logits.cols > kLongRow && logits.rows < kManyRows;
    // Rows of a few packets would leave most of a warp without any.
    if (vectors && block_a_row) {
      f.template operator()<Vectors<T>, kThreads>(blocks(kThreads));
    } else if (block_a_row) {
      f.template operator()<Scalars<ComputeOf<T>>, kThreads>(blocks(kThreads));
    } else if (vectors && logits.cols >= kWarpSize / 2 * Vectors<T>::kWidth) {
      f.template operator()<Vectors<T>, kWarpSize>(blocks(kWarpSize));
    } else {
      f.template operator()<Scalars<ComputeOf<T>>, kWarpSize>(blocks(kWarpSize));
    }
  });
}

}  // namespace

void softmax_cross_entropy_forward(const CudaExecution& execution, const SoftmaxCrossEntropyForward& args) {
  const ConstMatrix& logits = args.loss.logits;
  const detail::Scratch sums = execution.state.scratch(2 * kMostBlocks * sizeof(double));
  auto* losses = static_cast<double*>(sums.data());
  const ForwardWork work{losses,
                         losses + kMostBlocks,
                         execution.state.tickets(),
                         {execution.state.fault(), kBadLabel},
                         {execution.state.fault(), kBadWeight}};
  const bool vectors = aligned_rows(logits);
  visit_rows(logits, vectors, [&]<class Access, int kTeam>(unsigned blocks) {
    launch(execution, "softmax_cross_entropy_forward", forward_kernel<Access, kTeam>, dim3(blocks), kThreads, args,
           work);
  });
}

void softmax_cross_entropy_backward(const CudaExecution& execution, const SoftmaxCrossEntropyBackward& args) {
  const ConstMatrix& logits = args.loss.logits;
  const bool vectors = args.d.dtype == logits.dtype && (!args.c.data || args.c.dtype == logits.dtype) &&
                       aligned_rows(logits) && aligned_rows(args.c) && aligned_rows(args.d);
  visit_rows(logits, vectors, [&]<class Access, int kTeam>(unsigned blocks) {
    const auto kernel =
        args.c.data ? backward_kernel<Access, kTeam, Add::c> : backward_kernel<Access, kTeam, Add::nothing>;
    launch(execution, "softmax_cross_entropy_backward", kernel, dim3(blocks), kThreads, args);
  });
}

}  // namespace fusegrad::kernels
