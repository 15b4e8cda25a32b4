// y = act(x wᵀ + b): bias, activation and mask are applied to each strip of sums while it is in cache.
//
// Owner of a row of y: the tile. y, mask and pre-activation are assigned. Bytes moved an element of y beyond the
// product: its own size, one bit of mask, and for gelu the pre-activation.
#include <fusegrad/ops/cpu/activation_rows.h>
#include <fusegrad/ops/cpu/scratch.h>
#include <fusegrad/ops/cpu/tiled_product.h>
#include <fusegrad/ops/linear_kernels.h>

namespace fusegrad {
namespace detail {
namespace {

template <class Acc>
class ForwardEpilogue final : public Epilogue<Acc> {
 public:
  explicit ForwardEpilogue(const RowActivation<Acc>& activation) : activation_(activation) {}

  void apply(const Strip<Acc>& strip) override {
    for (std::int64_t i = 0; i < strip.rows.size(); ++i) {
      Acc* row = strip.sums + i * strip.ld;
      activation_.apply(strip.rows.begin + i, strip.cols.begin, strip.cols.size(), row, row);
    }
  }

 private:
  RowActivation<Acc> activation_;
};

template <class Acc>
ProductLibrary forward(const CpuExecution& execution, const kernels::LinearForward& args) {
  const auto& [x, w, b, y, activation, mask, pre_activation] = args;
  const TiledProduct<Acc> product({x.data, x.ld, x.dtype, false}, {w.data, w.ld, w.dtype, true},
                                  {y.rows, y.cols, x.cols}, execution.products);
  Scratch shared(execution.pool.shared_scratch(scratch_bytes<Acc>(product.shared_size(), b.size)));
  Acc* packed = shared.take<Acc>(product.shared_size());
  const Acc* bias = b.data ? kernels::load(b.data, b.dtype, 0, b.size, shared.take<Acc>(b.size)) : nullptr;
  ForwardEpilogue<Acc> epilogue({activation, bias, y, mask, pre_activation});
  product.run(execution.pool, packed, epilogue);
  return product.library();
}

}  // namespace
}  // namespace detail

namespace kernels {

namespace {

std::string_view note_of(const LinearForward& args) {
  const bool activation = args.activation != Activation::none;
  if (args.b.data) return activation ? "one pass: product, bias, activation" : "one pass: product, bias";
  return activation ? "one pass: product, activation" : "one pass: product";
}

}  // namespace

FusedResult linear_forward(const CpuExecution& execution, const LinearForward& args) {
  const ProductLibrary library =
      args.y.dtype == Dtype::f64 ? detail::forward<double>(execution, args) : detail::forward<float>(execution, args);
  return {.note = note_of(args), .product = library == ProductLibrary::onednn ? "y: oneDNN" : "y: Eigen"};
}

}  // namespace kernels
}  // namespace fusegrad
