#include <algorithm>

#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/ops/cuda/access.cuh>
#include <fusegrad/ops/cuda/launch.cuh>
#include <fusegrad/ops/cuda/simple_product.h>

namespace fusegrad::kernels {
namespace {

constexpr int kTile = 64;   // rows and columns of d that a block makes
constexpr int kDepth = 16;  // of the reduction, in shared memory at a time
constexpr int kEach = 4;    // rows and columns of a thread, kSide apart
constexpr int kSide = kTile / kEach;
constexpr int kThreads = kSide * kSide;

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

/// tile[p][i] = element (first + i, begin + p), 0 outside [0, rows) x [0, k).
template <class Sum, class In>
__device__ void load_tile(const Strided<In>& from, std::int64_t first, std::int64_t rows, std::int64_t begin,
                          std::int64_t k, Sum (&tile)[kDepth][kTile + 1]) {
  // Neighbouring threads take neighbouring addresses.
  const bool down = from.row == 1;
#pragma unroll
  for (int u = 0; u < kTile * kDepth / kThreads; ++u) {
    const int index = static_cast<int>(threadIdx.x) + u * kThreads;
    const int i = down ? index % kTile : index / kDepth;
    const int p = down ? index / kTile : index % kDepth;
    const bool inside = first + i < rows && begin + p < k;
    tile[p][i] = inside ? convert<Sum>(from.data[(first + i) * from.row + (begin + p) * from.column]) : Sum{0};
  }
}

template <class Sum, class In, class Out>
__global__ void __launch_bounds__(kThreads)
    product_kernel(Strided<In> a, Strided<In> b, Strided<Out> c, Out* d, std::int64_t ldd, std::int64_t m,
                   std::int64_t n, std::int64_t k) {
  __shared__ Sum a_tile[kDepth][kTile + 1];
  __shared__ Sum b_tile[kDepth][kTile + 1];
  const int x = static_cast<int>(threadIdx.x) % kSide;
  const int y = static_cast<int>(threadIdx.x) / kSide;
  const std::int64_t tiles_across = (n + kTile - 1) / kTile;
  const std::int64_t tiles = (m + kTile - 1) / kTile * tiles_across;
  for (std::int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const std::int64_t first_row = tile / tiles_across * kTile;
    const std::int64_t first_column = tile % tiles_across * kTile;
    Sum sums[kEach][kEach] = {};
    for (std::int64_t begin = 0; begin < k; begin += kDepth) {
      load_tile(a, first_row, m, begin, k, a_tile);
      load_tile(Strided<In>{b.data, b.column, b.row}, first_column, n, begin, k, b_tile);
      __syncthreads();
#pragma unroll
      for (int p = 0; p < kDepth; ++p) {
#pragma unroll
        for (int u = 0; u < kEach; ++u) {
#pragma unroll
          for (int v = 0; v < kEach; ++v)
            sums[u][v] = fma(a_tile[p][y + u * kSide], b_tile[p][x + v * kSide], sums[u][v]);
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int u = 0; u < kEach; ++u) {
#pragma unroll
      for (int v = 0; v < kEach; ++v) {
        const std::int64_t i = first_row + y + u * kSide;
        const std::int64_t j = first_column + x + v * kSide;
        if (i >= m || j >= n) continue;
        Sum sum = sums[u][v];
        if (c.data) sum += convert<Sum>(c.data[i * c.row + j]);
        d[i * ldd + j] = convert<Out>(sum);
      }
    }
  }
}

template <class Sum, class In, class Out>
void launch_product(const CudaExecution& execution, const SimpleProduct& args, std::int64_t k) {
  constexpr std::int64_t kMaxBlocks = 65535;
  const std::int64_t tiles = (args.d.rows + kTile - 1) / kTile * ((args.d.cols + kTile - 1) / kTile);
  launch(execution, "simple_product", product_kernel<Sum, In, Out>,
         dim3(static_cast<unsigned>(std::min(tiles, kMaxBlocks))), kThreads, strided<In>(args.a, args.transpose_a),
         strided<In>(args.b, args.transpose_b), strided<Out>(args.c, Transpose::no), static_cast<Out*>(args.d.data),
         args.d.ld, args.d.rows, args.d.cols, k);
}

}  // namespace

void simple_product(const CudaExecution& execution, const SimpleProduct& args) {
  if (args.d.rows == 0 || args.d.cols == 0) return;
  const std::int64_t k = args.transpose_a == Transpose::no ? args.a.cols : args.a.rows;
  detail::visit_floating(args.a.dtype, [&]<class In>() {
    using Sum = ComputeOf<In>;
    if (args.d.dtype == dtype_of<In>) {
      launch_product<Sum, In, In>(execution, args, k);
    } else {
      launch_product<Sum, In, Sum>(execution, args, k);
    }
  });
}

}  // namespace fusegrad::kernels
