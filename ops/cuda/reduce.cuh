// Sums over vectors: y = (sum over i of f({a[i], b[i], ...})) / divisor, in fp64 and rounded once. Not installed.
//
// The order is fixed by the length alone: a thread's packets, the threads of a block, the blocks. Operands are read
// once, and that is what bounds the kernel.
#pragma once

#include <algorithm>
#include <cstdint>

#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/ops/cuda/access.cuh>
#include <fusegrad/ops/cuda/block_reduce.cuh>
#include <fusegrad/ops/cuda/last_block.cuh>
#include <fusegrad/ops/cuda/launch.cuh>
#include <fusegrad/ops/cuda/operands.cuh>

namespace fusegrad::kernels {

inline constexpr int kSumThreads = 256;
/// One wave on 132 multiprocessors; not more, because one block adds up what they found.
inline constexpr std::int64_t kSumBlocks = 528;

/// What a sum is made into.
struct Quotient {
  double divisor = 1;
  Vector y = {};  ///< one element
};

template <class Access, int K, class F>
__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(F f, Operands<K> operands, std::int64_t size, Quotient quotient, double* partials, unsigned* ticket) {
  constexpr int N = Access::kWidth;
  constexpr int kInFlight = Operands<K>::kInFlight;
  const std::int64_t packets = size / N;
  const std::int64_t stride = std::int64_t{gridDim.x} * kSumThreads;
  double sum = 0;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kSumThreads + threadIdx.x; first < packets;
       first += kInFlight * stride) {
    typename Access::Raw raw[kInFlight][K];
#pragma unroll
    for (int p = 0; p < kInFlight; ++p) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        if (first + p * stride < packets) raw[p][k] = Access::load(operands.vectors[k], (first + p * stride) * N);
      }
    }
#pragma unroll
    for (int p = 0; p < kInFlight; ++p) {
      if (first + p * stride >= packets) continue;
      double x[K][N];
#pragma unroll
      for (int k = 0; k < K; ++k) Access::unpack(raw[p][k], operands.vectors[k].dtype, x[k]);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        double element[K];
#pragma unroll
        for (int k = 0; k < K; ++k) element[k] = x[k][i];
        sum += f(element);
      }
    }
  }
  if (blockIdx.x == 0 && threadIdx.x < size % N) {  // what no packet covers
    double element[K];
#pragma unroll
    for (int k = 0; k < K; ++k) element[k] = load_one<double>(operands.vectors[k], packets * N + threadIdx.x);
    sum += f(element);
  }
  sum = block_sum<kSumThreads>(sum);
  if (gridDim.x > 1) {
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
    if (!is_last_block(ticket, gridDim.x)) return;
    sum = 0;
    for (unsigned block = threadIdx.x; block < gridDim.x; block += kSumThreads) sum += partials[block];
    sum = block_sum<kSumThreads>(sum);
  }
  if (threadIdx.x == 0) store_one(quotient.y, 0, sum / quotient.divisor);
}

template <class Access, int K, class F>
void launch_sum(const CudaExecution& execution, std::string_view name, const F& f, const Operands<K>& operands,
                const Quotient& quotient) {
  constexpr std::int64_t kPerBlock = std::int64_t{Access::kWidth} * Operands<K>::kInFlight * kSumThreads;
  const std::int64_t size = operands.vectors[0].size;
  const std::int64_t blocks = std::clamp<std::int64_t>((size + kPerBlock - 1) / kPerBlock, 1, kSumBlocks);
  const detail::Scratch partials = execution.state.scratch(static_cast<std::size_t>(blocks) * sizeof(double));
  launch(execution, name, sum_kernel<Access, K, F>, dim3(static_cast<unsigned>(blocks)), kSumThreads, f, operands, size,
         quotient, static_cast<double*>(partials.data()), execution.state.tickets());
}

/// y = sum of f(elements i of the operands) / divisor; 0 / divisor for no elements. f takes and gives double, on the
/// device. Errors: CudaError that names `name`.
template <int K, class F>
void sum_of(const CudaExecution& execution, std::string_view name, const F& f, const Operands<K>& operands,
            const Quotient& quotient) {
  const Dtype dtype = operands.vectors[0].dtype;
  if (operands.aligned() && operands.all_of(dtype)) {
    detail::visit_floating(dtype, [&]<class T>() { launch_sum<Vectors<T>>(execution, name, f, operands, quotient); });
  } else if (operands.aligned() && !operands.any_of(Dtype::f64)) {
    launch_sum<Mixed>(execution, name, f, operands, quotient);
  } else {
    launch_sum<Scalars<double>>(execution, name, f, operands, quotient);
  }
}

}  // namespace fusegrad::kernels
