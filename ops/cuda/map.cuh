// Elementwise kernels: y[i] = f({a[i], b[i], ...}) over any mix of floating dtypes. Not installed.
//
// Every operand is read once and y is written once; what a thread writes it has read before, and no other thread reads
// it, so y may be an operand.
#pragma once

#include <algorithm>
#include <cstdint>

#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/ops/cuda/access.cuh>
#include <fusegrad/ops/cuda/launch.cuh>
#include <fusegrad/ops/cuda/operands.cuh>
#include <fusegrad/ops/views.h>

namespace fusegrad::kernels {

inline constexpr int kMapThreads = 256;

template <class Access, int K, class F>
__global__ void __launch_bounds__(kMapThreads) map_kernel(F f, Operands<K> operands, Vector y) {
  using Compute = typename Access::Compute;
  using One = Scalars<Compute>;
  constexpr int N = Access::kWidth;
  constexpr int kPackets = Operands<K>::kInFlight;
  const std::int64_t packets = y.size / N;
  const std::int64_t first = std::int64_t{blockIdx.x} * (kPackets * kMapThreads) + threadIdx.x;
  typename Access::Raw raw[kPackets][Operands<K>::kLength];
#pragma unroll
  for (int p = 0; p < kPackets; ++p) {
    const std::int64_t packet = first + p * kMapThreads;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      if (packet < packets) raw[p][k] = Access::load(operands.vectors[k], packet * N);
    }
  }
#pragma unroll
  for (int p = 0; p < kPackets; ++p) {
    const std::int64_t packet = first + p * kMapThreads;
    if (packet >= packets) continue;
    Compute x[Operands<K>::kLength][N];
#pragma unroll
    for (int k = 0; k < K; ++k) Access::unpack(raw[p][k], operands.vectors[k].dtype, x[k]);
    Compute result[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      Compute element[Operands<K>::kLength];
#pragma unroll
      for (int k = 0; k < K; ++k) element[k] = x[k][i];
      result[i] = f(element);
    }
    Access::store(y, packet * N, result);
  }
  // What no packet covers.
  if (blockIdx.x == 0 && threadIdx.x < y.size % N) {
    const std::int64_t index = packets * N + threadIdx.x;
    Compute element[Operands<K>::kLength];
#pragma unroll
    for (int k = 0; k < K; ++k) element[k] = One::load(operands.vectors[k], index).value;
    const Compute result[1] = {f(element)};
    One::store(y, index, result);
  }
}

template <class Access, int K, class F>
void launch_map(const CudaExecution& execution, std::string_view name, const F& f, const Operands<K>& operands,
                const Vector& y) {
  constexpr std::int64_t kPerBlock = std::int64_t{Access::kWidth} * Operands<K>::kInFlight * kMapThreads;
  const auto blocks = static_cast<unsigned>((y.size + kPerBlock - 1) / kPerBlock);
  launch(execution, name, map_kernel<Access, K, F>, dim3(blocks), kMapThreads, f, operands, y);
}

/// y[i] = f(elements i of the operands), computed in Compute and rounded once. f is callable on the device. Every
/// operand has y's size. Errors: CudaError that names `name`.
template <class Compute, int K, class F>
void map(const CudaExecution& execution, std::string_view name, const F& f, const Operands<K>& operands,
         const Vector& y) {
  const bool packets = operands.aligned() && aligned(y.data);
  if (packets && operands.all_of(y.dtype) && accumulation_dtype(y.dtype) == dtype_of<Compute>) {
    detail::visit_floating(y.dtype, [&]<class T>() {
      if constexpr (std::is_same_v<ComputeOf<T>, Compute>) launch_map<Vectors<T>>(execution, name, f, operands, y);
    });
    return;
  }
  if constexpr (std::is_same_v<Compute, float>) {
    if (packets) return launch_map<Mixed>(execution, name, f, operands, y);
  }
  launch_map<Scalars<Compute>>(execution, name, f, operands, y);
}

}  // namespace fusegrad::kernels
