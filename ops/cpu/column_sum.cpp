#include <algorithm>

#include <fusegrad/ops/cpu/activation_rows.h>
#include <fusegrad/ops/cpu/column_sum.h>
#include <fusegrad/ops/cpu/scratch.h>
#include <fusegrad/ops/cpu/tasks.h>
#include <fusegrad/ops/linear_kernels.h>

namespace fusegrad {
namespace detail {
namespace {

constexpr std::int64_t kChunk = 256;

}  // namespace

template <class Acc>
void finish_column_sums(const Acc* partial, std::int64_t blocks, const Vector& to, const ConstVector& c) {
  Acc sums[kChunk];
  Acc former[kChunk];
  for (std::int64_t begin = 0; begin < to.size; begin += kChunk) {
    const std::int64_t n = std::min(kChunk, to.size - begin);
    std::fill_n(sums, n, Acc{0});
    for (std::int64_t block = 0; block < blocks; ++block) add_row(sums, partial + block * to.size + begin, n, sums);
    Acc* out = kernels::destination(to.data, to.dtype, begin, sums);
    add_row(sums, c.data ? kernels::load(c.data, c.dtype, begin, n, former) : nullptr, n, out);
    kernels::store(out, to.data, to.dtype, begin, n);
  }
}

template void finish_column_sums<float>(const float*, std::int64_t, const Vector&, const ConstVector&);
template void finish_column_sums<double>(const double*, std::int64_t, const Vector&, const ConstVector&);

namespace {

/// Blocks are cut by the shape alone: enough rows to be worth a task, and few enough to have many.
template <class Acc>
void sum_columns(ThreadPool& pool, const kernels::ColumnSum& args) {
  const std::int64_t rows = args.dz.rows;
  const std::int64_t cols = args.dz.cols;
  constexpr std::int64_t kElementsATask = std::int64_t{1} << 16;
  const std::int64_t block_rows = std::max<std::int64_t>(1, kElementsATask / std::max<std::int64_t>(1, cols));
  const std::int64_t blocks = cols == 0 ? 0 : ceil_div(rows, block_rows);
  Acc* partial = static_cast<Acc*>(pool.shared_scratch(scratch_bytes<Acc>(blocks * cols)));
  run_tasks(pool, blocks, rows * cols * 8, [&](std::int64_t block, int) {
    Acc* sums = partial + block * cols;
    std::fill_n(sums, cols, Acc{0});
    Acc buffer[kChunk];
    const std::int64_t end = std::min((block + 1) * block_rows, rows);
    for (std::int64_t i = block * block_rows; i < end; ++i)
      for (std::int64_t j = 0; j < cols; j += kChunk) {
        const std::int64_t n = std::min(kChunk, cols - j);
        add_row(sums + j, kernels::load(args.dz.data, args.dz.dtype, i * args.dz.ld + j, n, buffer), n, sums + j);
      }
  });
  finish_column_sums(partial, blocks, args.bias, args.bias_c);
}

}  // namespace
}  // namespace detail

namespace kernels {

void column_sum(const CpuExecution& execution, const ColumnSum& args) {
  if (args.dz.dtype == Dtype::f64) {
    detail::sum_columns<double>(execution.pool, args);
  } else {
    detail::sum_columns<float>(execution.pool, args);
  }
}

}  // namespace kernels
}  // namespace fusegrad
