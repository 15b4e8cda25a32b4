// dw = dzᵀ x + c, with bias = column sums of dz + bias_c.
//
// The reduction runs over the batch, which is long where layers are narrow: it is then cut into parts, a task each,
// whose sums are added in order. The tiles at dw's left edge sum the columns of dz while they pack it.
//
// dw and bias are assigned; c and bias_c are added, and may be dw and bias themselves.
#include <fusegrad/ops/cpu/activation_rows.h>
#include <fusegrad/ops/cpu/column_sum.h>
#include <fusegrad/ops/cpu/scratch.h>
#include <fusegrad/ops/cpu/tasks.h>
#include <fusegrad/ops/cpu/tiled_product.h>
#include <fusegrad/ops/linear_kernels.h>

namespace fusegrad {
namespace detail {
namespace {

/// Adds c to a row of sums and stores it: columns [col, col + n) of row i. `spare` holds n elements.
template <class Acc>
void store_with_c(const kernels::LinearWeightGradient& args, std::int64_t i, std::int64_t col, std::int64_t n, Acc* row,
                  Acc* spare) {
  const Matrix& dw = args.dw;
  const ConstMatrix& c = args.c;
  Acc* out = kernels::destination(dw.data, dw.dtype, i * dw.ld + col, row);
  add_row(row, c.data ? kernels::load(c.data, c.dtype, i * c.ld + col, n, spare) : nullptr, n, out);
  kernels::store(out, dw.data, dw.dtype, i * dw.ld + col, n);
}

/// Stores the whole sums.
template <class Acc>
class StoreEpilogue final : public Epilogue<Acc> {
 public:
  explicit StoreEpilogue(const kernels::LinearWeightGradient& args) : args_(args) {}

  void apply(const Strip<Acc>& strip) override {
    for (std::int64_t i = strip.rows.begin; i < strip.rows.end; ++i)
      store_with_c(args_, i, strip.cols.begin, strip.cols.size(), strip.sums + (i - strip.rows.begin) * strip.ld,
                   strip.spare);
  }

 private:
  const kernels::LinearWeightGradient& args_;
};

/// Keeps the sums of each part, as [part, n, k].
template <class Acc>
class PartEpilogue final : public Epilogue<Acc> {
 public:
  PartEpilogue(Acc* parts, std::int64_t n, std::int64_t k) : parts_(parts), n_(n), k_(k) {}

  void apply(const Strip<Acc>& strip) override {
    for (std::int64_t i = strip.rows.begin; i < strip.rows.end; ++i)
      std::copy_n(strip.sums + (i - strip.rows.begin) * strip.ld, strip.cols.size(),
                  parts_ + (strip.part * n_ + i) * k_ + strip.cols.begin);
  }

 private:
  Acc* parts_;
  std::int64_t n_;
  std::int64_t k_;
};

/// dw = Σ_part parts[part] + c, part 0 first.
template <class Acc>
void add_parts(ThreadPool& pool, const kernels::LinearWeightGradient& args, Acc* parts, std::int64_t count) {
  const std::int64_t n = args.dw.rows;
  const std::int64_t k = args.dw.cols;
  constexpr std::int64_t kRowsATask = 8;
  run_tasks(pool, ceil_div(n, kRowsATask), count * n * k, [&](std::int64_t task, int worker) {
    Acc* spare = static_cast<Acc*>(pool.scratch(worker, static_cast<std::size_t>(k) * sizeof(Acc)));
    for (std::int64_t i = task * kRowsATask; i < std::min((task + 1) * kRowsATask, n); ++i) {
      Acc* row = parts + i * k;
      for (std::int64_t part = 1; part < count; ++part) add_row(row, parts + (part * n + i) * k, k, row);
      store_with_c(args, i, 0, k, row, spare);
    }
  });
}

template <class Acc>
ProductLibrary weight_gradient(const CpuExecution& execution, const kernels::LinearWeightGradient& args) {
  const std::int64_t n = args.dw.rows;
  const std::int64_t k = args.dw.cols;
  const TiledProduct<Acc> product({args.dz.data, args.dz.ld, args.dz.dtype, true},
                                  {args.x.data, args.x.ld, args.x.dtype, false}, {n, k, args.dz.rows},
                                  execution.products, SplitDepth::yes);
  const std::int64_t count = product.parts();
  const std::int64_t sums = args.bias.data ? count * n : 0;
  const std::int64_t parts = count > 1 ? count * n * k : 0;
  Scratch shared(execution.pool.shared_scratch(scratch_bytes<Acc>(product.shared_size(), sums, parts)));
  Acc* packed = shared.take<Acc>(product.shared_size());
  Acc* partial_bias = args.bias.data ? shared.take<Acc>(sums) : nullptr;
  if (count > 1) {
    Acc* partial = shared.take<Acc>(parts);
    PartEpilogue<Acc> epilogue(partial, n, k);
    product.run(execution.pool, packed, epilogue, partial_bias);
    add_parts(execution.pool, args, partial, count);
  } else {
    StoreEpilogue<Acc> epilogue(args);
    product.run(execution.pool, packed, epilogue, partial_bias);
  }
  if (args.bias.data) finish_column_sums(partial_bias, count, args.bias, args.bias_c);
  return product.library();
}

}  // namespace
}  // namespace detail

namespace kernels {

FusedResult linear_weight_gradient(const CpuExecution& execution, const LinearWeightGradient& args) {
  if (args.dw.cols == 0) {  // no product to carry the sums
    if (args.bias.data) column_sum(execution, {.dz = args.dz, .bias = args.bias, .bias_c = args.bias_c});
    return {};
  }
  const ProductLibrary library = args.dz.dtype == Dtype::f64 ? detail::weight_gradient<double>(execution, args)
                                                             : detail::weight_gradient<float>(execution, args);
  return {.product = library == ProductLibrary::onednn ? "dw: oneDNN" : "dw: Eigen"};
}

}  // namespace kernels
}  // namespace fusegrad
