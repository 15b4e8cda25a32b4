// bias = column sums of dz + bias_c; reads dz once and is bound by that.
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/ops/cuda/launch.cuh>
#include <fusegrad/ops/cuda/sweep.cuh>
#include <fusegrad/ops/linear_kernels.h>

namespace fusegrad::kernels {
namespace {

template <class Access>
__global__ void __launch_bounds__(kSummingThreads)
    column_sum_kernel(ConstMatrix dz, Sweep sweep, ColumnSums<typename Access::Compute> sums) {
  constexpr int N = Access::kWidth;
  const SweepPart part(sweep, N, kSweepRows);
  typename Access::Compute totals[N] = {};
  typename Access::Raw raw[kSweepRows];
  for (std::int64_t row = part.first; row < part.end; row += part.step) {
#pragma unroll
    for (int u = 0; u < kSweepRows; ++u) {
      if (row + u * sweep.row_lanes < part.end) raw[u] = Access::load(dz, row + u * sweep.row_lanes, part.column);
    }
#pragma unroll
    for (int u = 0; u < kSweepRows; ++u) {
      if (row + u * sweep.row_lanes >= part.end) continue;
      typename Access::Compute values[N];
      Access::unpack(raw[u], dz.dtype, values);
#pragma unroll
      for (int i = 0; i < N; ++i) totals[i] += values[i];
    }
  }
  finish_column_sums(sweep, sums, totals);
}

template <class Access>
void sum_columns(const CudaExecution& execution, const ColumnSum& args) {
  const Sweep sweep = plan_summing_sweep(args.dz.rows, args.dz.cols, Access::kWidth);
  const SweepScratch<typename Access::Compute> scratch(execution, sweep, Access::kWidth);
  launch_sweep(execution, "column_sum", column_sum_kernel<Access>, sweep, args.dz, sweep,
               scratch.sums(args.bias, args.bias_c));
}

}  // namespace

void column_sum(const CudaExecution& execution, const ColumnSum& args) {
  detail::visit_floating(args.dz.dtype, [&]<class T>() {
    if (aligned(args.dz, Vectors<T>::kWidth)) {
      sum_columns<Vectors<T>>(execution, args);
    } else {
      sum_columns<Scalars<ComputeOf<T>>>(execution, args);
    }
  });
}

}  // namespace fusegrad::kernels
