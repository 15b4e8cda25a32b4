// y = act(z + b): bias, activation, and what backward needs of them, in one pass bound by memory.
//
// Reads z; writes y and, where asked for, a bit (relu) or z (gelu) an element. All outputs are assigned. A thread reads
// an element before it writes it, and no other thread does either, so y may be z.
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/ops/activation_functions.h>
#include <fusegrad/ops/activation_kernels.h>
#include <fusegrad/ops/cuda/block_reduce.cuh>
#include <fusegrad/ops/cuda/launch.cuh>
#include <fusegrad/ops/cuda/sweep.cuh>
#include <fusegrad/ops/cuda/visit_activation.cuh>

namespace fusegrad::kernels {
namespace {

constexpr int kWordBits = 32;

template <Activation activation, class Compute>
__device__ Compute activate(Compute z) {
  if constexpr (activation == Activation::gelu_tanh) {
    return detail::GeluTanh::value(z);
  } else if constexpr (activation == Activation::gelu_erf) {
    return detail::GeluErf::value(z);
  } else {
    return z;
  }
}

/// Bits of the `width` columns from `column` on, lowest first; width divides 8 or is it.
__device__ unsigned mask_bits(const std::uint8_t* row, std::int64_t column) {
  return static_cast<unsigned>(row[column / 8]) >> (column % 8);
}

/// Gathers the bits of a row's packets into words of 32 columns and stores them. Called by all lanes of a warp.
template <int N>
__device__ void store_mask(std::uint8_t* row, std::int64_t cols, std::int64_t column, unsigned bits, bool valid) {
  constexpr int kLanes = kWordBits / N;  // of one word
  const auto index = static_cast<int>(column % kWordBits);
  unsigned word = bits << index;
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) word |= __shfl_xor_sync(kAllLanes, word, step);
  if (!valid || index != 0) return;
  auto* to = reinterpret_cast<unsigned*>(row) + column / kWordBits;
  *to = word;
  if (column + kWordBits < cols) return;
  const auto* end = reinterpret_cast<unsigned*>(row + mask_row_bytes(cols));
  for (++to; to < end; ++to) *to = 0;  // padding
}

/// Bits of z >= 0, or of the branches that are replayed, and the values that they leave.
template <class Compute, int N>
__device__ unsigned relu(const std::uint8_t* branches, std::int64_t column, Compute (&values)[N]) {
  unsigned bits = 0;
  if (branches) {
    bits = mask_bits(branches, column) & ((1u << N) - 1);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = bits >> i & 1u ? values[i] : Compute{0};
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      bits |= values[i] >= Compute{0} ? 1u << i : 0u;
      values[i] = values[i] < Compute{0} ? Compute{0} : values[i];  // a NaN stays
    }
  }
  return bits;
}

template <class In, class Out, Activation activation>
__global__ void __launch_bounds__(kSweepThreads, 4) forward_kernel(ActivationForward args, Sweep sweep) {
  using Compute = typename Out::Compute;
  constexpr int N = Out::kWidth;
  constexpr int kRows = sizeof(typename In::Raw) > 16 ? kSweepRows / 2 : kSweepRows;
  const SweepPart part(sweep, N, kRows);
  const std::int64_t mask_row = mask_row_bytes(sweep.cols);
  Compute bias[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const bool given = args.b.data && part.first < part.end;
    bias[i] = given ? load_one<Compute>(args.b, part.column + i) : -Compute{0};  // adding -0 changes nothing
  }
  typename In::Raw raw[kRows];
  // All lanes make the same number of rounds, because they gather the mask together.
  for (std::int64_t first = part.first; first - part.lane < sweep.rows; first += part.step) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      if (first + u * sweep.row_lanes < part.end) raw[u] = In::load(args.z, first + u * sweep.row_lanes, part.column);
    }
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      const std::int64_t row = first + u * sweep.row_lanes;
      const bool valid = row < part.end;
      unsigned bits = 0;
      if (valid) {
        Compute values[N];
        In::unpack(raw[u], args.z.dtype, values);
#pragma unroll
        for (int i = 0; i < N; ++i) values[i] += bias[i];
        if constexpr (activation == Activation::relu) {
          bits = relu(args.branches ? args.branches + row * mask_row : nullptr, part.column, values);
        } else {
          if (args.pre_activation.data) Out::store(args.pre_activation, row, part.column, values);
#pragma unroll
          for (int i = 0; i < N; ++i) values[i] = activate<activation>(values[i]);
        }
        Out::store(args.y, row, part.column, values);
      }
      if constexpr (activation == Activation::relu) {
        if (args.mask) store_mask<N>(args.mask + row * mask_row, sweep.cols, part.column, bits, valid);
      }
    }
  }
}

template <class In, class Out>
void forward(const CudaExecution& execution, const ActivationForward& args) {
  const int group = args.mask ? kWordBits / Out::kWidth : 1;
  const Sweep sweep = plan_sweep(args.y.rows, args.y.cols, Out::kWidth, group);
  visit_activation(args.activation, [&]<Activation activation>() {
    launch_sweep(execution, "activation_forward", forward_kernel<In, Out, activation>, sweep, args, sweep);
  });
}

}  // namespace

void activation_forward(const CudaExecution& execution, const ActivationForward& args) {
  detail::visit_floating(args.y.dtype, [&]<class T>() {
    using Compute = ComputeOf<T>;
    using Out = Vectors<T>;
    const int width = Out::kWidth;
    const bool vectors = aligned(args.z, width) && aligned(args.y, width) && aligned(args.pre_activation, width);
    if (vectors && args.z.dtype == dtype_of<T>) {
      forward<Out, Out>(execution, args);
    } else if (vectors && args.z.dtype == dtype_of<Compute>) {
      forward<Vectors<Compute, Out::kWidth>, Out>(execution, args);
    } else {
      forward<Scalars<Compute>, Scalars<Compute>>(execution, args);
    }
  });
}

}  // namespace fusegrad::kernels
