// How a grid walks a row-major matrix, and sums its columns on the way. Not installed.
//
// A block of threads takes a strip of columns and every so many groups of rows:
//
//   thread % packets   its packet of columns, fixed for the whole walk: sums of columns stay in registers
//   thread / packets   the first of its rows in a group; the others follow in steps of row_lanes
//
// The blocks of a strip walk it together, group by group, so that the memory sees one front and not many.
//
// Sums of columns are added in an order that the shape alone decides: a thread's rows, then the block's threads, then
// the blocks of the strip, by whichever comes last. So bits repeat, and there is no second launch. Blocks that sum are
// as large as can be: the fewer there are, the less the last one has to add. Small matrices have one block a strip, and
// few strips: in a step they leave most of the GPU to the weight gradient that runs beside. (Clusters of eight blocks
// that hand on their sums through shared memory take a quarter less alone, but the step longer.)
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/cuda/access.cuh>
#include <fusegrad/ops/cuda/block_reduce.cuh>
#include <fusegrad/ops/cuda/last_block.cuh>
#include <fusegrad/ops/cuda/launch.cuh>
#include <fusegrad/ops/views.h>

namespace fusegrad::kernels {

/// Threads of a block, and of one that sums: at most.
inline constexpr int kSweepThreads = 256;
inline constexpr int kSummingThreads = 1024;
/// Threads of one wave on 132 multiprocessors. A constant, since sums must not depend on the device.
inline constexpr std::int64_t kSweepWave = std::int64_t{132} * 1024;
/// Rows that a thread has in flight, at most.
inline constexpr int kSweepRows = 4;

/// The cut of a matrix into blocks; all of it follows from the shape and the width of a packet.
struct Sweep {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  int threads = kSweepThreads;
  int packets = 0;    ///< of a strip
  int row_lanes = 0;  ///< rows that a block visits at a time
  unsigned strips = 0;
  unsigned row_blocks = 0;  ///< blocks of a strip

  dim3 grid() const { return {strips, row_blocks, 1}; }
};

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }

/// Cuts `packets` packets a row into strips for blocks of `threads`, each of which visits about `row_lanes` rows at a
/// time. `group`: packets that must be neighbours in a warp (a power of two up to 32).
inline Sweep cut_sweep(std::int64_t rows, std::int64_t cols, std::int64_t packets, int threads, std::int64_t row_lanes,
                       int group) {
  Sweep sweep{.rows = rows, .cols = cols, .threads = threads};
  // With few rows, threads that have no row of their own take more columns.
  row_lanes = std::clamp<std::int64_t>(rows, 1, row_lanes);
  const std::int64_t most = std::max<std::int64_t>(threads / row_lanes / group * group, group);
  sweep.packets = static_cast<int>(std::min(packets, most));
  sweep.row_lanes = threads / sweep.packets;
  sweep.strips = static_cast<unsigned>(ceil_div(packets, sweep.packets));
  const std::int64_t wave = std::max<std::int64_t>(kSweepWave / threads / sweep.strips, 1);
  const std::int64_t useful = ceil_div(rows, std::int64_t{sweep.row_lanes} * kSweepRows);
  // An empty column has a sum too: one block without rows.
  sweep.row_blocks = static_cast<unsigned>(std::clamp<std::int64_t>(useful, 1, wave));
  return sweep;
}

/// A sweep by blocks of kSweepThreads. `width`: columns a packet.
inline Sweep plan_sweep(std::int64_t rows, std::int64_t cols, int width, int group = 1) {
  if (cols == 0) return {.rows = rows, .cols = cols};
  const std::int64_t packets = ceil_div(ceil_div(cols, width), group) * group;
  // 512 contiguous bytes a row suit the memory. A small matrix is in the cache and needs many blocks instead.
  const bool small = width > 1 && rows * packets < kSweepWave * kSweepRows / 2;
  return cut_sweep(rows, cols, packets, kSweepThreads, small ? 32 : 8, group);
}

/// A sweep that sums columns.
inline Sweep plan_summing_sweep(std::int64_t rows, std::int64_t cols, int width) {
  if (cols == 0) return {.rows = rows, .cols = cols};
  const std::int64_t packets = ceil_div(cols, width);
  if (width > 1 && rows <= 1024 && rows * packets < 2 * kSweepWave) {
    Sweep sweep = cut_sweep(rows, cols, packets, 512, 128, 1);
    sweep.row_blocks = 1;
    return sweep;
  }
  // Strips of 512 contiguous bytes, unless there were so many that one block each would leave processors idle.
  const bool narrow = width > 1 && packets <= 66 * 32;
  return cut_sweep(rows, cols, packets, kSummingThreads, narrow ? 32 : 8, 1);
}

/// A thread's part of a sweep in groups of `rows_in_flight` rows: for (row = first; row < end; row += step), with the
/// rows row + i row_lanes, i < rows_in_flight, of which those below `end` exist.
struct SweepPart {
  std::int64_t column;  ///< first of its packet
  std::int64_t first;
  std::int64_t end;  ///< 0 for a thread without columns
  std::int64_t step;
  int lane;

  __device__ SweepPart(const Sweep& sweep, int width, int rows_in_flight) {
    const int packet = static_cast<int>(threadIdx.x) % sweep.packets;
    lane = static_cast<int>(threadIdx.x) / sweep.packets;
    const std::int64_t group = std::int64_t{rows_in_flight} * sweep.row_lanes;
    column = (std::int64_t{blockIdx.x} * sweep.packets + packet) * width;
    first = blockIdx.y * group + lane;
    step = sweep.row_blocks * group;
    end = lane < sweep.row_lanes && column < sweep.cols ? sweep.rows : 0;
  }
};

/// Where sums of columns go: bias = sums + bias_c.
template <class Compute>
struct ColumnSums {
  Vector bias = {};             ///< or none
  ConstVector bias_c = {};      ///< or none
  Compute* partials = nullptr;  ///< sweep_partials() elements, 16-byte aligned
  unsigned* tickets = nullptr;  ///< one a strip; zero before and after

  /// What is to be added to the sum of a column.
  __device__ Compute base(std::int64_t column) const {
    return bias_c.data && column < bias.size ? load_one<Compute>(bias_c, column) : Compute{0};
  }
  __device__ void store(std::int64_t column, Compute sum) const {
    if (column < bias.size) store_one(bias, column, sum);
  }
};

/// Elements of ColumnSums::partials; none if one block sums a whole strip.
inline std::int64_t sweep_partials(const Sweep& sweep, int width) {
  return sweep.row_blocks > 1 ? std::int64_t{sweep.row_blocks} * sweep.strips * sweep.packets * width : 0;
}

/// groups[column] = sum of a tight [rows, width] array's column: groups of threads sum every so many rows, then the
/// groups are added in order. Called by all threads of a block; `groups` holds as many elements as there are threads,
/// or width, whichever is more, and is not `from`.
template <class Compute>
__device__ void sum_rows(const Compute* from, int rows, int width, Compute* groups) {
  constexpr int kInFlight = 8;  // loads; a loop that adds one after the other would wait for each
  const int threads = static_cast<int>(blockDim.x);
  const int count = min(max(threads / width, 1), rows);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < width * count; i += threads) {
    const Compute* column = from + i % width;
    Compute sum = 0;
#pragma unroll 1
    for (int row = i / width; row < rows; row += kInFlight * count) {
      Compute loaded[kInFlight];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        const int at = row + u * count;
        loaded[u] = at < rows ? column[static_cast<std::int64_t>(at) * width] : Compute{0};
      }
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) sum += loaded[u];
    }
    groups[i] = sum;
  }
  __syncthreads();
#pragma unroll 1
  for (int column = static_cast<int>(threadIdx.x); column < width; column += threads) {
    Compute sum = groups[column];
#pragma unroll 4
    for (int group = 1; group < count; ++group) sum += groups[group * width + column];
    groups[column] = sum;
  }
  __syncthreads();
}

/// Adds up the block's `totals`, one packet a thread, and stores the bias gradient if this block is the strip's last.
/// Called by all threads of a block.
template <class Compute, int N>
__device__ void finish_column_sums(const Sweep& sweep, const ColumnSums<Compute>& sums, const Compute (&totals)[N]) {
  alignas(16) __shared__ Compute lanes[kSummingThreads * N];
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int width = sweep.packets * N;
  const std::int64_t strip = std::int64_t{blockIdx.x} * width;
  const int blocks = static_cast<int>(sweep.row_blocks);
  // What this thread's first sum is added to is asked for now, so that it is there then.
  const Compute base = thread < width ? sums.base(strip + thread) : Compute{0};

  Compute values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = totals[i];
  int rows = sweep.row_lanes;
  int row = thread / sweep.packets;
  // Lanes of a warp that have the same packet add up first.
  if (sweep.packets < kWarpSize && kWarpSize % sweep.packets == 0) {
#pragma unroll 1
    for (int step = sweep.packets; step < kWarpSize; step *= 2) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] += __shfl_xor_sync(kAllLanes, values[i], step);
    }
    rows = threads / kWarpSize;
    row = thread % kWarpSize < sweep.packets ? thread / kWarpSize : rows;
  }
  if (row < rows) {
#pragma unroll
    for (int i = 0; i < N; ++i) lanes[row * width + thread % sweep.packets * N + i] = values[i];
  }
  __syncthreads();
  const auto sum_of = [&](int column) {
    Compute sum = lanes[column];
#pragma unroll 8
    for (int lane = 1; lane < rows; ++lane) sum += lanes[lane * width + column];
    return sum;
  };
  const auto store = [&](int column, Compute sum) {
    sums.store(strip + column, sum + (column == thread ? base : sums.base(strip + column)));
  };

  Compute* partials = sums.partials + strip * blocks;  // [row_blocks, width]
#pragma unroll 1
  for (int column = thread; column < width; column += threads) {
    if (blocks == 1) {
      store(column, sum_of(column));
    } else {
      partials[blockIdx.y * width + column] = sum_of(column);
    }
  }
  if (blocks == 1 || !is_last_block(sums.tickets + blockIdx.x, sweep.row_blocks)) return;
  sum_rows(partials, blocks, width, lanes);
#pragma unroll 1
  for (int column = thread; column < width; column += threads) store(column, lanes[column]);
}

/// Scratch memory of one launch that sums columns.
template <class Compute>
class SweepScratch {
 public:
  SweepScratch(const CudaExecution& execution, const Sweep& sweep, int width)
      : memory_(execution.state.scratch(static_cast<std::size_t>(sweep_partials(sweep, width)) * sizeof(Compute))),
        tickets_(execution.state.tickets()) {}

  ColumnSums<Compute> sums(const Vector& bias, const ConstVector& bias_c) const {
    return {.bias = bias, .bias_c = bias_c, .partials = static_cast<Compute*>(memory_.data()), .tickets = tickets_};
  }

 private:
  detail::Scratch memory_;
  unsigned* tickets_;
};

/// Launches a kernel that walks `sweep`.
template <class... Parameters, class... Arguments>
void launch_sweep(const CudaExecution& execution, std::string_view name, void (*kernel)(Parameters...),
                  const Sweep& sweep, Arguments&&... arguments) {
  launch(execution, name, kernel, sweep.grid(), sweep.threads, std::forward<Arguments>(arguments)...);
}

}  // namespace fusegrad::kernels
