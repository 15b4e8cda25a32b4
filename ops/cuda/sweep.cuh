// How a grid walks a row-major matrix, and sums its columns on the way. Not installed.
//
// A block of threads takes a strip of columns and a range of rows:
//
//   thread % packets   its packet of columns, fixed for the whole walk: sums of columns stay in registers
//   thread / packets   the first of its rows; it goes on in steps of row_lanes
//
// Sums of columns are added in an order that the shape alone decides: a thread's rows, then the block's threads, then
// the row ranges of a cluster of blocks, through their shared memory, then the clusters, by whichever block of the
// strip comes last. So bits repeat, and there is no second launch.
#pragma once

#include <algorithm>
#include <cstdint>

#include <cooperative_groups.h>

#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/cuda/access.cuh>
#include <fusegrad/ops/cuda/last_block.cuh>
#include <fusegrad/ops/cuda/launch.cuh>
#include <fusegrad/ops/views.h>

namespace fusegrad::kernels {

inline constexpr int kSweepThreads = 256;
/// Blocks of one wave: four on each of 132 multiprocessors. A constant, since sums must not depend on the device.
inline constexpr std::int64_t kSweepBlocks = 528;
/// Rows that a thread has in flight.
inline constexpr int kSweepRows = 4;
/// Row ranges whose sums one cluster adds up: as many blocks as every GPU with clusters can put together.
inline constexpr unsigned kSweepCluster = 8;
/// Whether all code of this build is for GPUs that have clusters.
#ifdef FUSEGRAD_CUDA_CLUSTERS
inline constexpr bool kClusters = true;
#else
inline constexpr bool kClusters = false;
#endif

/// The cut of a matrix into blocks; all of it follows from the shape and the width of a packet.
struct Sweep {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t rows_per_block = 0;
  int packets = 0;    ///< of a strip
  int row_lanes = 0;  ///< rows that a block visits at a time
  unsigned strips = 0;
  unsigned row_blocks = 0;  ///< a multiple of cluster; the last may have no rows
  unsigned cluster = 1;     ///< row blocks that add up their sums before the others see them

  dim3 grid() const { return {strips, row_blocks, 1}; }
  constexpr unsigned clusters() const { return row_blocks / cluster; }
};

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit; }

/// Whether a sweep sums columns.
enum class Sums : std::uint8_t { no, yes };

/// `width`: columns a packet. `group`: packets that must be neighbours in a warp (a power of two up to 32).
inline Sweep plan_sweep(std::int64_t rows, std::int64_t cols, int width, Sums sums, int group = 1) {
  Sweep sweep{.rows = rows, .cols = cols};
  if (cols == 0) return sweep;
  const std::int64_t packets = ceil_div(ceil_div(cols, width), group) * group;
  // 512 contiguous bytes a row suit the memory best. A small matrix is in the cache and needs many blocks instead:
  // strips of a cache line.
  std::int64_t row_lanes = 8;
  if (width > 1 && rows * packets < kSweepBlocks / 2 * kSweepThreads * kSweepRows) row_lanes = 32;
  // With few rows, threads that have no row of their own take more columns.
  row_lanes = std::clamp<std::int64_t>(rows, 1, row_lanes);
  const std::int64_t most = std::max<std::int64_t>(kSweepThreads / row_lanes / group * group, group);
  sweep.packets = static_cast<int>(std::min(packets, most));
  sweep.row_lanes = kSweepThreads / sweep.packets;
  sweep.strips = static_cast<unsigned>(ceil_div(packets, sweep.packets));
  const std::int64_t wave = std::max<std::int64_t>(kSweepBlocks / sweep.strips, 1);
  const std::int64_t useful = ceil_div(rows, std::int64_t{sweep.row_lanes} * kSweepRows);
  // An empty column has a sum too: one block without rows.
  const std::int64_t row_blocks = std::clamp<std::int64_t>(useful, 1, wave);
  sweep.rows_per_block = std::max<std::int64_t>(ceil_div(rows, row_blocks), 1);
  sweep.row_blocks = static_cast<unsigned>(std::max<std::int64_t>(ceil_div(rows, sweep.rows_per_block), 1));
  if (sums == Sums::no || !kClusters) return sweep;
  while (sweep.cluster < kSweepCluster && row_blocks % (2 * sweep.cluster) == 0) sweep.cluster *= 2;
  sweep.row_blocks = static_cast<unsigned>(ceil_div(sweep.row_blocks, sweep.cluster)) * sweep.cluster;
  return sweep;
}

/// A thread's part of a sweep.
struct SweepPart {
  std::int64_t column;  ///< first of its packet
  std::int64_t row;     ///< first of its rows
  std::int64_t end;     ///< end of its rows; none for a thread without columns

  __device__ SweepPart(const Sweep& sweep, int width) {
    const int packet = static_cast<int>(threadIdx.x) % sweep.packets;
    const int lane = static_cast<int>(threadIdx.x) / sweep.packets;
    const std::int64_t first = blockIdx.y * sweep.rows_per_block;
    column = (std::int64_t{blockIdx.x} * sweep.packets + packet) * width;
    row = first + lane;
    end = lane < sweep.row_lanes && column < sweep.cols ? min(first + sweep.rows_per_block, sweep.rows) : 0;
  }
};

/// Where sums of columns go: bias = sums + bias_c.
template <class Compute>
struct ColumnSums {
  Vector bias = {};             ///< or none
  ConstVector bias_c = {};      ///< or none
  Compute* partials = nullptr;  ///< sweep_partials() elements, 16-byte aligned
  unsigned* tickets = nullptr;  ///< one a strip; zero before and after

  __device__ void store(std::int64_t column, Compute sum) const {
    if (column >= bias.size) return;
    if (bias_c.data) sum += load_one<Compute>(bias_c, column);
    store_one(bias, column, sum);
  }
};

/// Elements of ColumnSums::partials; none if one cluster sums a whole strip.
inline std::int64_t sweep_partials(const Sweep& sweep, int width) {
  return sweep.clusters() > 1 ? std::int64_t{sweep.clusters()} * sweep.strips * sweep.packets * width : 0;
}

/// groups[column] = sum of a tight [rows, width] array's column: groups of threads sum every so many rows, then the
/// groups are added in order. kVector divides width. Called by all threads; `groups` holds kSweepThreads * kVector
/// elements, or width, whichever is more. Not inlined, so that it is in the instruction cache when it is needed again.
template <int kVector, class Compute>
__device__ __noinline__ void sum_rows(const Compute* from, int rows, int width, Compute* groups) {
  struct alignas(kVector * sizeof(Compute)) Unit {
    Compute values[kVector];
  };
  constexpr int kMostGroups = 16;
  const int units = width / kVector;
  const int group_count = min(max(kSweepThreads / units, 1), min(rows, kMostGroups));
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < units * group_count; i += kSweepThreads) {
    const Unit* column = reinterpret_cast<const Unit*>(from) + i % units;
    Unit sum = {};
#pragma unroll 8
    for (int row = i / units; row < rows; row += group_count) {
      const Unit term = column[static_cast<std::int64_t>(row) * units];
#pragma unroll
      for (int v = 0; v < kVector; ++v) sum.values[v] += term.values[v];
    }
    reinterpret_cast<Unit*>(groups)[i] = sum;
  }
  __syncthreads();
#pragma unroll 1
  for (int column = static_cast<int>(threadIdx.x); column < width; column += kSweepThreads) {
    Compute sum = groups[column];
#pragma unroll 4
    for (int group = 1; group < group_count; ++group) sum += groups[group * width + column];
    groups[column] = sum;
  }
  __syncthreads();
}

/// sums[column] = sum over the cluster's blocks of their groups[column], in the first block. True there, and only
/// there. Called by all threads of the cluster.
template <class Compute>
__device__ bool add_up_cluster([[maybe_unused]] int width, [[maybe_unused]] Compute* groups,
                               [[maybe_unused]] Compute* sums) {
#ifdef FUSEGRAD_CUDA_CLUSTERS
  const cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
  cluster.sync();
  const bool first = cluster.block_rank() == 0;
  if (first) {
#pragma unroll 1
    for (int column = static_cast<int>(threadIdx.x); column < width; column += kSweepThreads) {
      Compute terms[kSweepCluster] = {};
#pragma unroll
      for (unsigned block = 0; block < kSweepCluster; ++block) {
        if (block < cluster.num_blocks()) terms[block] = *cluster.map_shared_rank(groups + column, block);
      }
      Compute sum = terms[0];
#pragma unroll
      for (unsigned block = 1; block < kSweepCluster; ++block) sum += terms[block];
      sums[column] = sum;
    }
  }
  cluster.sync();  // the others' shared memory has been read
  return first;
#else
  return true;
#endif
}

/// Adds up the block's `totals`, one packet a thread, and stores the bias gradient if this block is the strip's last.
/// Called by all threads.
template <class Compute, int N>
__device__ void finish_column_sums(const Sweep& sweep, const ColumnSums<Compute>& sums, const Compute (&totals)[N]) {
  constexpr int kVector = N * sizeof(Compute) > 16 ? 16 / sizeof(Compute) : N;
  alignas(16) __shared__ Compute lanes[kSweepThreads * N];
  alignas(16) __shared__ Compute groups[kSweepThreads * N];
  const int width = sweep.packets * N;
#pragma unroll
  for (int i = 0; i < N; ++i) lanes[threadIdx.x * N + i] = totals[i];
  __syncthreads();
  sum_rows<kVector>(lanes, sweep.row_lanes, width, groups);

  Compute* done = groups;
  if (sweep.cluster > 1) {
    done = lanes;
    if (!add_up_cluster(width, groups, done)) return;
  }
  if (sweep.clusters() > 1) {
    Compute* partials = sums.partials + std::int64_t{blockIdx.x} * sweep.clusters() * width;
#pragma unroll 1
    for (int column = static_cast<int>(threadIdx.x); column < width; column += kSweepThreads) {
      partials[std::int64_t{blockIdx.y / sweep.cluster} * width + column] = done[column];
    }
    if (!is_last_block(sums.tickets + blockIdx.x, sweep.clusters())) return;
    done = groups;
    sum_rows<kVector>(partials, static_cast<int>(sweep.clusters()), width, done);
  }
  __syncthreads();
#pragma unroll 1
  for (int column = static_cast<int>(threadIdx.x); column < width; column += kSweepThreads) {
    sums.store(std::int64_t{blockIdx.x} * width + column, done[column]);
  }
}

/// Starts a kernel that ends with finish_column_sums.
template <class... Parameters, class... Arguments>
void launch_sweep(const CudaExecution& execution, std::string_view name, void (*kernel)(Parameters...),
                  const Sweep& sweep, Arguments&&... arguments) {
  launch_clusters(execution, name, kernel, sweep.grid(), dim3(1, sweep.cluster, 1), kSweepThreads,
                  std::forward<Arguments>(arguments)...);
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

}  // namespace fusegrad::kernels
