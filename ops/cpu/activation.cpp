// Standalone activations, and activation gradients that no product absorbed: one pass over rows in chunks that stay in
// the first-level cache.
//
// Forward: y = act(z + b); y, mask and pre-activation are assigned. Backward: dz = act'(saved) ∘ dy + c is assigned, c
// is added; bias = column sums of act'(saved) ∘ dy + bias_c, in fp32 before rounding, blocks of rows in order.
#include <algorithm>

#include <fusegrad/ops/activation_kernels.h>
#include <fusegrad/ops/cpu/activation_rows.h>
#include <fusegrad/ops/cpu/column_sum.h>
#include <fusegrad/ops/cpu/scratch.h>
#include <fusegrad/ops/cpu/tasks.h>

namespace fusegrad {
namespace detail {
namespace {

constexpr std::int64_t kPiece = 512;  // columns: in the first-level cache, and a multiple of a mask's 128 bits
constexpr std::int64_t kElementsATask = std::int64_t{1} << 15;
constexpr std::int64_t kWorkAnElement = 16;  // multiply-adds that take as long

/// Rows a task: by the shape alone.
std::int64_t rows_a_task(std::int64_t cols) {
  return std::max<std::int64_t>(1, kElementsATask / std::max<std::int64_t>(1, cols));
}

/// Calls f(row, first column, columns, block of rows) for pieces of rows, those of a block in order.
template <class F>
void for_each_piece(ThreadPool& pool, std::int64_t rows, std::int64_t cols, F&& f) {
  if (cols == 0) return;
  const std::int64_t block_rows = rows_a_task(cols);
  run_tasks(pool, ceil_div(rows, block_rows), rows * cols * kWorkAnElement, [&](std::int64_t block, int) {
    const std::int64_t end = std::min((block + 1) * block_rows, rows);
    for (std::int64_t i = block * block_rows; i < end; ++i)
      for (std::int64_t j = 0; j < cols; j += kPiece) f(i, j, std::min(kPiece, cols - j), block);
  });
}

template <class Acc>
const Acc* load_piece(const ConstMatrix& from, std::int64_t i, std::int64_t j, std::int64_t n, Acc* buffer) {
  return kernels::load(from.data, from.dtype, i * from.ld + j, n, buffer);
}

/// b in Acc, in place or in `memory`; null if there is none.
template <class Acc>
const Acc* bias_row(const kernels::ActivationForward& args, Acc* memory) {
  return args.b.data ? kernels::load(args.b.data, args.b.dtype, 0, args.b.size, memory) : nullptr;
}

template <class Acc>
void forward(ThreadPool& pool, const kernels::ActivationForward& args) {
  Acc* shared = static_cast<Acc*>(pool.shared_scratch(scratch_bytes<Acc>(args.b.size)));
  const Acc* bias = bias_row(args, shared);
  const RowActivation<Acc> row{args.activation, bias, args.y, args.mask, args.pre_activation};
  for_each_piece(pool, args.y.rows, args.y.cols, [&](std::int64_t i, std::int64_t j, std::int64_t n, std::int64_t) {
    alignas(64) Acc buffer[kPiece];
    row.apply(i, j, n, load_piece(args.z, i, j, n, buffer), buffer);
  });
}

/// relu with the signs of z + b replaced by `branches`.
template <class Acc>
void forward_along_branches(ThreadPool& pool, const kernels::ActivationForward& args) {
  const std::int64_t cols = args.y.cols;
  const std::int64_t row_bytes = mask_row_bytes(cols);
  Acc* shared = static_cast<Acc*>(pool.shared_scratch(scratch_bytes<Acc>(args.b.size)));
  const Acc* bias = bias_row(args, shared);
  for_each_piece(pool, args.y.rows, cols, [&](std::int64_t i, std::int64_t j, std::int64_t n, std::int64_t) {
    alignas(64) Acc buffer[kPiece];
    const std::uint8_t* bits = args.branches + i * row_bytes;
    if (args.mask && j == 0) std::copy_n(bits, row_bytes, args.mask + i * row_bytes);
    Acc* out = kernels::destination(args.y.data, args.y.dtype, i * args.y.ld + j, buffer);
    add_row(load_piece(args.z, i, j, n, buffer), bias ? bias + j : nullptr, n, out);
    select_row(bits + j / 8, out, n, out);
    kernels::store(out, args.y.data, args.y.dtype, i * args.y.ld + j, n);
  });
}

template <class Acc>
void backward(ThreadPool& pool, const kernels::ActivationBackward& args) {
  const Matrix& dz = args.dz;
  const ConstMatrix& c = args.c;
  const std::int64_t cols = dz.cols;
  const std::int64_t blocks = ceil_div(dz.rows, rows_a_task(cols));
  Acc* sums = nullptr;
  if (args.bias.data) {
    sums = static_cast<Acc*>(pool.shared_scratch(scratch_bytes<Acc>(blocks * cols)));
    std::fill_n(sums, blocks * cols, Acc{0});
  }
  const RowGradient<Acc> gradient{args.activation, args.mask, args.pre_activation, cols};
  for_each_piece(pool, dz.rows, cols, [&](std::int64_t i, std::int64_t j, std::int64_t n, std::int64_t block) {
    alignas(64) Acc buffer[kPiece];
    alignas(64) Acc other[kPiece];
    Acc* out = kernels::destination(dz.data, dz.dtype, i * dz.ld + j, buffer);
    // c, which may be dz, is read before dz is written, and is no part of the sums.
    Acc* own = c.data ? buffer : out;
    gradient.apply(i, j, n, load_piece(args.dy, i, j, n, buffer), own, other);
    if (sums) add_row(sums + block * cols + j, own, n, sums + block * cols + j);
    if (c.data) add_row(own, load_piece(c, i, j, n, other), n, out);
    kernels::store(out, dz.data, dz.dtype, i * dz.ld + j, n);
  });
  if (args.bias.data) finish_column_sums(sums, blocks, args.bias, args.bias_c);
}

}  // namespace
}  // namespace detail

namespace kernels {

void activation_forward(const CpuExecution& execution, const ActivationForward& args) {
  const bool in_double = args.y.dtype == Dtype::f64;
  if (args.branches) {
    in_double ? detail::forward_along_branches<double>(execution.pool, args)
              : detail::forward_along_branches<float>(execution.pool, args);
  } else {
    in_double ? detail::forward<double>(execution.pool, args) : detail::forward<float>(execution.pool, args);
  }
}

void activation_backward(const CpuExecution& execution, const ActivationBackward& args) {
  if (args.dz.dtype == Dtype::f64 || args.dy.dtype == Dtype::f64) {
    detail::backward<double>(execution.pool, args);
  } else {
    detail::backward<float>(execution.pool, args);
  }
}

}  // namespace kernels
}  // namespace fusegrad
