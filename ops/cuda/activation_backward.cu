// dz = act'(saved) ∘ dy + c and, in the same pass, bias = column sums of act'(saved) ∘ dy, before rounding, + bias_c.
//
// Reads dy, a bit (relu) or z (gelu) an element, and c; writes dz: bound by memory. dz and bias are assigned. A thread
// reads an element before it writes it, and no other thread does either, so dz may be dy and c may be dz.
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/ops/activation_kernels.h>
#include <fusegrad/ops/cuda/launch.cuh>
#include <fusegrad/ops/cuda/sweep.cuh>
#include <fusegrad/ops/cuda/visit_activation.cuh>

namespace fusegrad::kernels {
namespace {

template <Activation activation, class Compute>
__device__ Compute slope(Compute z) {
  if constexpr (activation == Activation::gelu_tanh) {
    return detail::GeluTanh::slope(z);
  } else {
    return detail::GeluErf::slope(z);
  }
}

enum class Add : std::uint8_t { nothing, c };

/// What a thread has read of one packet.
template <class Access, Activation activation, Add add>
struct Packet {
  using Compute = typename Access::Compute;
  using Raw = typename Access::Raw;
  static constexpr int N = Access::kWidth;

  Raw dy;
  Raw z;
  Raw c;
  unsigned bits;

  __device__ void load(const ActivationBackward& args, std::int64_t row, std::int64_t column) {
    dy = Access::load(args.dy, row, column);
    if constexpr (activation == Activation::relu) {
      bits = mask_bits(args.mask + row * mask_row_bytes(args.dz.cols), column);
    }
    if constexpr (is_gelu(activation)) z = Access::load(args.pre_activation, row, column);
    if constexpr (add == Add::c) c = Access::load(args.c, row, column);
  }

  __device__ void finish(const ActivationBackward& args, std::int64_t row, std::int64_t column, Compute (&totals)[N]) {
    Compute values[N];
    Access::unpack(dy, args.dy.dtype, values);
    if constexpr (activation == Activation::relu) {
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = bits >> i & 1u ? values[i] : Compute{0};
    }
    if constexpr (is_gelu(activation)) {
      Compute saved[N];
      Access::unpack(z, args.pre_activation.dtype, saved);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] *= slope<activation>(saved[i]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) totals[i] += values[i];
    if constexpr (add == Add::c) {
      Compute added[N];
      Access::unpack(c, args.c.dtype, added);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] += added[i];
    }
    Access::store(args.dz, row, column, values);
  }
};

template <class Access, Activation activation, Add add>
__global__ void __launch_bounds__(kSummingThreads)
    backward_kernel(ActivationBackward args, Sweep sweep, ColumnSums<typename Access::Compute> sums) {
  constexpr int N = Access::kWidth;
  // As many bytes in flight as the registers hold: several operands of a row, or several rows of one.
  constexpr int kRows = is_gelu(activation) || add == Add::c ? kSweepRows / 2 : kSweepRows;
  const SweepPart part(sweep, N, kRows);
  typename Access::Compute totals[N] = {};
  Packet<Access, activation, add> packets[kRows];
  for (std::int64_t row = part.first; row < part.end; row += part.step) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      if (row + u * sweep.row_lanes < part.end) packets[u].load(args, row + u * sweep.row_lanes, part.column);
    }
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      if (row + u * sweep.row_lanes < part.end) packets[u].finish(args, row + u * sweep.row_lanes, part.column, totals);
    }
  }
  if (sums.bias.data) finish_column_sums(sweep, sums, totals);
}

template <class Access>
void backward(const CudaExecution& execution, const ActivationBackward& args) {
  const bool sums = args.bias.data != nullptr;
  const Sweep sweep = sums ? plan_summing_sweep(args.dz.rows, args.dz.cols, Access::kWidth)
                           : plan_sweep(args.dz.rows, args.dz.cols, Access::kWidth);
  const SweepScratch<typename Access::Compute> scratch(execution, sweep, Access::kWidth);
  visit_activation(args.activation, [&]<Activation activation>() {
    const auto kernel =
        args.c.data ? backward_kernel<Access, activation, Add::c> : backward_kernel<Access, activation, Add::nothing>;
    launch_sweep(execution, "activation_backward", kernel, sweep, args, sweep, scratch.sums(args.bias, args.bias_c));
  });
}

}  // namespace

void activation_backward(const CudaExecution& execution, const ActivationBackward& args) {
  const Dtype dtype = args.dz.dtype;
  const bool one_dtype = args.dy.dtype == dtype && (!args.c.data || args.c.dtype == dtype) &&
                         (!args.pre_activation.data || args.pre_activation.dtype == dtype);
  detail::visit_floating(dtype, [&]<class T>() {
    constexpr int kWidth = Vectors<T>::kWidth;
    if (one_dtype && aligned(args.dy, kWidth) && aligned(args.c, kWidth) && aligned(args.dz, kWidth) &&
        aligned(args.pre_activation, kWidth)) {
      backward<Vectors<T>>(execution, args);
    } else if (dtype == Dtype::f64 || args.dy.dtype == Dtype::f64) {
      backward<Scalars<double>>(execution, args);
    } else {
      backward<Scalars<float>>(execution, args);
    }
  });
}

}  // namespace fusegrad::kernels
