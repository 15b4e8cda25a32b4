// d = op(a) op(b) in the accumulation dtype: the product of the unfused definition. Always by our own kernels, since it
// is the reference.
#include <algorithm>

#include <fusegrad/ops/cpu/scratch.h>
#include <fusegrad/ops/cpu/tiled_product.h>
#include <fusegrad/ops/linear_kernels.h>

namespace fusegrad {
namespace detail {
namespace {

template <class Acc>
class CopyEpilogue final : public Epilogue<Acc> {
 public:
  explicit CopyEpilogue(const Matrix& d) : d_(d) {}

  void apply(const Strip<Acc>& strip) override {
    for (std::int64_t i = strip.rows.begin; i < strip.rows.end; ++i)
      std::copy_n(strip.sums + (i - strip.rows.begin) * strip.ld, strip.cols.size(),
                  static_cast<Acc*>(d_.data) + i * d_.ld + strip.cols.begin);
  }

 private:
  const Matrix& d_;
};

template <class Acc>
void run_product(ThreadPool& pool, const kernels::Product& args) {
  const bool transpose_a = args.transpose_a == kernels::Transpose::yes;
  const bool transpose_b = args.transpose_b == kernels::Transpose::yes;
  const TiledProduct<Acc> product(
      {args.a.data, args.a.ld, args.a.dtype, transpose_a}, {args.b.data, args.b.ld, args.b.dtype, transpose_b},
      {args.d.rows, args.d.cols, transpose_a ? args.a.rows : args.a.cols}, ProductLibrary::eigen);
  CopyEpilogue<Acc> epilogue(args.d);
  product.run(pool, static_cast<Acc*>(pool.shared_scratch(scratch_bytes<Acc>(product.shared_size()))), epilogue);
}

}  // namespace
}  // namespace detail

namespace kernels {

void product(const CpuExecution& execution, const Product& args) {
  if (args.d.dtype == Dtype::f64) {
    detail::run_product<double>(execution.pool, args);
  } else {
    detail::run_product<float>(execution.pool, args);
  }
}

}  // namespace kernels
}  // namespace fusegrad
