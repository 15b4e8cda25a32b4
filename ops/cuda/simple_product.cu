#include <algorithm>

#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/ops/cuda/simple_product.h>

namespace fusegrad::kernels {
namespace {

constexpr int kTile = 16;

/// Element (i, j) is at i * row + j * column.
template <class T>
struct Strided {
  const T* data;
  std::int64_t row;
  std::int64_t column;
};

template <class T>
Strided<T> strided(const ConstMatrix& matrix, Transpose transpose) {
  const auto* data = static_cast<const T*>(matrix.data);
  return transpose == Transpose::no ? Strided<T>{data, matrix.ld, 1} : Strided<T>{data, 1, matrix.ld};
}

template <class Sum, class In, class Out>
__global__ void __launch_bounds__(kTile* kTile)
    product_kernel(Strided<In> a, Strided<In> b, Strided<Out> c, Out* d, std::int64_t ldd, std::int64_t m,
                   std::int64_t n, std::int64_t k) {
  __shared__ Sum a_tile[kTile][kTile];
  __shared__ Sum b_tile[kTile][kTile];
  const int x = static_cast<int>(threadIdx.x);
  const int y = static_cast<int>(threadIdx.y);
  const std::int64_t tiles_across = (n + kTile - 1) / kTile;
  const std::int64_t tiles = (m + kTile - 1) / kTile * tiles_across;
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::int64_t i = tile / tiles_across * kTile + y;
    const std::int64_t j = tile % tiles_across * kTile + x;
    Sum sum = 0;
    for (std::int64_t begin = 0; begin < k; begin += kTile) {
      a_tile[y][x] = i < m && begin + x < k ? static_cast<Sum>(a.data[i * a.row + (begin + x) * a.column]) : Sum(0);
      b_tile[y][x] = j < n && begin + y < k ? static_cast<Sum>(b.data[(begin + y) * b.row + j * b.column]) : Sum(0);
      __syncthreads();
      for (int t = 0; t < kTile; ++t) sum = fma(a_tile[y][t], b_tile[t][x], sum);
      __syncthreads();
    }
    if (i < m && j < n) {
      if (c.data) sum += static_cast<Sum>(c.data[i * c.row + j]);
      d[i * ldd + j] = static_cast<Out>(sum);
    }
  }
}

template <class Sum, class In, class Out>
void launch(const CudaExecution& execution, const SimpleProduct& args, std::int64_t k) {
  constexpr std::int64_t kMaxBlocks = 65535;
  const std::int64_t tiles = (args.d.rows + kTile - 1) / kTile * ((args.d.cols + kTile - 1) / kTile);
  product_kernel<Sum, In, Out>
      <<<static_cast<unsigned>(std::min(tiles, kMaxBlocks)), dim3(kTile, kTile), 0, execution.stream>>>(
          strided<In>(args.a, args.transpose_a), strided<In>(args.b, args.transpose_b),
          strided<Out>(args.c, Transpose::no), static_cast<Out*>(args.d.data), args.d.ld, args.d.rows, args.d.cols, k);
  FUSEGRAD_CUDA_LAUNCH("product_kernel");
}

}  // namespace

void simple_product(const CudaExecution& execution, const SimpleProduct& args) {
  if (args.d.rows == 0 || args.d.cols == 0) return;
  const std::int64_t k = args.transpose_a == Transpose::no ? args.a.cols : args.a.rows;
  detail::visit_floating(args.a.dtype, [&]<class In>() {
    using Sum = std::conditional_t<std::is_same_v<In, double>, double, float>;
    if (args.d.dtype == dtype_of<In>) {
      launch<Sum, In, In>(execution, args, k);
    } else {
      launch<Sum, In, Sum>(execution, args, k);
    }
  });
}

}  // namespace fusegrad::kernels
