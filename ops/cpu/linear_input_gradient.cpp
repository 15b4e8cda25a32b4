// dx = act'(saved) ∘ (dz w + c), with bias = column sums of dx + bias_c: what was contributed before, the activation
// gradient and the partial column sums are applied to each strip of sums while it is in cache.
//
// Owner of a row of dx: the tile. dx and bias are assigned; c and bias_c are added, and may be dx and bias themselves.
// Column sums are taken before the rounding of dx, row by row in a tile, then tile by tile.
#include <tuple>

#include <fusegrad/ops/cpu/activation_rows.h>
#include <fusegrad/ops/cpu/column_sum.h>
#include <fusegrad/ops/cpu/scratch.h>
#include <fusegrad/ops/cpu/tiled_product.h>
#include <fusegrad/ops/linear_kernels.h>

namespace fusegrad {
namespace detail {
namespace {

template <class Acc>
class InputGradientEpilogue final : public Epilogue<Acc> {
 public:
  /// `sums`: [row tiles, k] partial column sums, or null.
  InputGradientEpilogue(const kernels::LinearInputGradient& args, Acc* sums)
      : c_(args.c),
        dx_(args.dx),
        gradient_{args.activation, args.mask, args.pre_activation, args.dx.cols},
        sums_(sums) {}

  void apply(const Strip<Acc>& strip) override {
    const std::int64_t col = strip.cols.begin;
    const std::int64_t n = strip.cols.size();
    Acc* sums = sums_ ? sums_ + strip.tile * dx_.cols + col : nullptr;
    if (sums && strip.first) std::fill_n(sums, n, Acc{0});
    for (std::int64_t i = strip.rows.begin; i < strip.rows.end; ++i) {
      Acc* row = strip.sums + (i - strip.rows.begin) * strip.ld;
      // All of c's row is read before dx's is written: they may be one.
      if (c_.data) add_row(row, kernels::load(c_.data, c_.dtype, i * c_.ld + col, n, strip.spare), n, row);
      Acc* out = kernels::destination(dx_.data, dx_.dtype, i * dx_.ld + col, row);
      gradient_.apply(i, col, n, row, out, strip.spare);
      if (sums) add_row(sums, out, n, sums);
      kernels::store(out, dx_.data, dx_.dtype, i * dx_.ld + col, n);
    }
  }

 private:
  ConstMatrix c_;
  Matrix dx_;
  RowGradient<Acc> gradient_;
  Acc* sums_;
};

template <class Acc>
ProductLibrary input_gradient(const CpuExecution& execution, const kernels::LinearInputGradient& args) {
  const auto& [dz, w, dx, bias] = std::tie(args.dz, args.w, args.dx, args.bias);
  const TiledProduct<Acc> product({dz.data, dz.ld, dz.dtype, false}, {w.data, w.ld, w.dtype, false},
                                  {dx.rows, dx.cols, dz.cols}, execution.products);
  const std::int64_t sums = bias.data ? product.row_tiles() * dx.cols : 0;
  Scratch shared(execution.pool.shared_scratch(scratch_bytes<Acc>(product.shared_size(), sums)));
  Acc* packed = shared.take<Acc>(product.shared_size());
  Acc* partial = bias.data ? shared.take<Acc>(sums) : nullptr;
  InputGradientEpilogue<Acc> epilogue(args, partial);
  product.run(execution.pool, packed, epilogue);
  if (bias.data) finish_column_sums(partial, product.row_tiles(), bias, args.bias_c);
  return product.library();
}

}  // namespace
}  // namespace detail

namespace kernels {

FusedResult linear_input_gradient(const CpuExecution& execution, const LinearInputGradient& args) {
  const ProductLibrary library = args.dz.dtype == Dtype::f64 ? detail::input_gradient<double>(execution, args)
                                                             : detail::input_gradient<float>(execution, args);
  FusedResult result{.product = library == ProductLibrary::onednn ? "dx: oneDNN" : "dx: Eigen"};
  if (args.activation != Activation::none)
    result.note = args.bias.data ? "one pass: product, activation gradient, bias gradient"
                                 : "one pass: product, activation gradient";
  return result;
}

}  // namespace kernels
}  // namespace fusegrad
