#include <cmath>

#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/ops/activation_functions.h>
#include <fusegrad/ops/cuda/access.cuh>
#include <fusegrad/ops/cuda/launch.cuh>
#include <fusegrad/ops/cuda/trial_kernels.h>

namespace fusegrad::detail {
namespace {

using kernels::ComputeOf;
using kernels::convert;
using kernels::launch;
using kernels::load_one;
using kernels::store_one;

constexpr int kThreads = 256;
constexpr unsigned kBlocks = 1056;

__device__ std::uint32_t hash(std::uint64_t index, std::uint32_t seed) {
  std::uint64_t h = (index + 1) * 0x9E3779B97F4A7C15u + seed * 0xBF58476D1CE4E5B9u;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9u;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBu;
  return static_cast<std::uint32_t>(h >> 32);
}

/// About normal, with mean 0 and variance 1.
__device__ float normal(std::uint64_t index, std::uint32_t seed) {
  const std::uint32_t first = hash(index, seed);
  const std::uint32_t second = hash(index, seed + 1);
  const std::uint32_t sum = (first & 0xffffu) + (first >> 16) + (second & 0xffffu) + (second >> 16);
  return (static_cast<float>(sum) - 131070.0f) / 37837.0f;
}

/// density < 0: normal values; else -1 or 1 with that probability, else 0.
__global__ void fill_kernel(Vector to, float density, std::uint32_t seed) {
  for (std::int64_t i = blockIdx.x * kThreads + threadIdx.x; i < to.size; i += std::int64_t{gridDim.x} * kThreads) {
    const auto index = static_cast<std::uint64_t>(i);
    float value = 0;
    if (density < 0) {
      value = normal(index, seed);
    } else if (const std::uint32_t h = hash(index, seed); static_cast<float>(h >> 8) * 0x1p-24f < density) {
      value = (h & 1u) != 0 ? 1.0f : -1.0f;
    }
    store_one(to, i, value);
  }
}

__global__ void fill_bytes_kernel(unsigned char* to, std::int64_t count, std::uint32_t seed) {
  for (std::int64_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += std::int64_t{gridDim.x} * kThreads)
    to[i] = static_cast<unsigned char>(hash(static_cast<std::uint64_t>(i), seed));
}

/// Relative error that the epilogues' GELU and its slope are allowed; measured: 3.7e-6 and 1.6e-5, in fp64 2.3e-10 and
/// 3.1e-10.
template <class Compute>
struct GeluError;
template <>
struct GeluError<float> {
  static constexpr float kValue = 1e-5f;
  static constexpr float kSlope = 4e-5f;
};
template <>
struct GeluError<double> {
  static constexpr double kValue = 1e-9;
  static constexpr double kSlope = 1e-9;
};

template <class Out>
__global__ void check_elements_kernel(CheckedElements args) {
  using Compute = ComputeOf<Out>;
  const LtProduct& p = args.product;
  const Epilogue epilogue = p.epilogue;
  const bool mask = is_relu_mask(epilogue);
  const auto rounding = static_cast<Compute>(sizeof(Out) == 2 ? 0x1p-7 : sizeof(Out) == 4 ? 0x1p-22 : 0x1p-50);
  const std::int64_t size = p.d.rows * p.d.cols;
  for (std::int64_t e = blockIdx.x * kThreads + threadIdx.x; e < size; e += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t i = e / p.d.cols;
    const std::int64_t j = e % p.d.cols;
    Compute v = static_cast<const Compute*>(args.reference)[e];
    if (args.former) v += load_one<Compute>({args.former, 0, p.c.dtype}, i * p.c.ld + j);
    if (p.bias) v += load_one<Compute>({p.bias, 0, p.d.dtype}, j);
    const ConstVector saved{p.saved, 0, p.d.dtype};
    bool bit = true;
    Compute z = 0;
    if (p.saved && mask) {
      bit = static_cast<const std::uint8_t*>(p.saved)[i * p.saved_ld / 8 + j / 8] >> (j % 8) & 1;
    } else if (p.saved) {
      z = load_one<Compute>(saved, i * p.saved_ld + j);
    }
    Compute expected = v;
    Compute tolerance = 0;
    bool saved_right = true;
    switch (epilogue) {
      case Epilogue::relu:
      case Epilogue::relu_bias: expected = v > 0 ? v : 0; break;
      case Epilogue::relu_aux:
      case Epilogue::relu_aux_bias:
        expected = v > 0 ? v : 0;
        saved_right = bit == (v >= 0);
        break;
      case Epilogue::gelu_aux:
      case Epilogue::gelu_aux_bias: saved_right = z == convert<Compute>(convert<Out>(v)); [[fallthrough]];
      case Epilogue::gelu:
      case Epilogue::gelu_bias:
        expected = GeluTanh::value(v);
        // From 16 on gelu is v or 0, whoever computes it.
        tolerance = v >= 16 ? 0 : GeluError<Compute>::kValue * fabs(v) + rounding * fabs(expected);
        break;
      case Epilogue::drelu:
      case Epilogue::drelu_bgrad: expected = bit ? v : 0; break;
      case Epilogue::dgelu:
      case Epilogue::dgelu_bgrad:
        expected = v * GeluTanh::slope(z);
        tolerance = GeluError<Compute>::kSlope * fabs(v) + rounding * fabs(expected);
        break;
      default: break;
    }
    const Compute got = load_one<Compute>({p.d.data, 0, p.d.dtype}, i * p.d.ld + j);
    const Compute want = convert<Compute>(convert<Out>(expected));
    if (!(fabs(got - want) <= tolerance)) atomicAdd(args.faults + wrong_elements, 1ull);
    if (!saved_right) atomicAdd(args.faults + wrong_saved, 1ull);
  }
}

constexpr int kColumns = 32;  // of a block of check_sums_kernel

/// Compares `sums` with the column sums of `matrix`, in fp64.
__global__ void check_sums_kernel(ConstMatrix matrix, ConstVector sums, unsigned long long* faults) {
  __shared__ double totals[kThreads];
  __shared__ double sizes[kThreads];
  const std::int64_t j = std::int64_t{blockIdx.x} * kColumns + threadIdx.x % kColumns;
  double total = 0;
  double size = 0;
  if (j < matrix.cols) {
    for (std::int64_t i = threadIdx.x / kColumns; i < matrix.rows; i += kThreads / kColumns) {
      const auto value = load_one<double>({matrix.data, 0, matrix.dtype}, i * matrix.ld + j);
      total += value;
      size += fabs(value);
    }
  }
  totals[threadIdx.x] = total;
  sizes[threadIdx.x] = size;
  __syncthreads();
  if (threadIdx.x >= kColumns || j >= matrix.cols) return;
  for (int lane = 1; lane < kThreads / kColumns; ++lane) {
    total += totals[lane * kColumns + threadIdx.x];
    size += sizes[lane * kColumns + threadIdx.x];
  }
  // Sums of integers are exact while they fit; others are held to the bound of a sum of so many terms. A 16-bit sum is
  // rounded, and perhaps made of terms that were not.
  const auto n = static_cast<double>(matrix.rows);
  const double u = sums.dtype == Dtype::f64 ? 0x1p-53 : 0x1p-24;
  double tolerance = size < 0x1p24 && total == rint(total) && size == rint(size) ? 0 : u * size * (4 * sqrt(n) + n / 8);
  if (sums.dtype == Dtype::bf16) tolerance += 0x1p-8 * size;
  if (sums.dtype == Dtype::f16) tolerance += 0x1p-11 * size;
  if (!(fabs(load_one<double>(sums, j) - total) <= tolerance)) atomicAdd(faults + wrong_sums, 1ull);
}

/// Counts bytes that are not `pattern`: `count` rows of `width` bytes, `pitch` apart.
__global__ void check_poison_kernel(const unsigned char* from, std::int64_t rows, std::int64_t width,
                                    std::int64_t pitch, unsigned char pattern, unsigned long long* faults) {
  for (std::int64_t e = blockIdx.x * kThreads + threadIdx.x; e < rows * width;
       e += std::int64_t{gridDim.x} * kThreads) {
    if (from[e / width * pitch + e % width] != pattern) atomicAdd(faults + written_outside, 1ull);
  }
}

}  // namespace

void fill_normal(const CudaExecution& execution, const Vector& to, std::uint32_t seed) {
  if (!to.data || to.size == 0) return;
  launch(execution, "fill", fill_kernel, dim3(kBlocks), kThreads, to, -1.0f, seed);
}

void fill_thinly(const CudaExecution& execution, const Vector& to, double density, std::uint32_t seed) {
  if (!to.data || to.size == 0) return;
  launch(execution, "fill", fill_kernel, dim3(kBlocks), kThreads, to, static_cast<float>(density), seed);
}

void fill_bytes(const CudaExecution& execution, void* to, std::int64_t count, std::uint32_t seed) {
  launch(execution, "fill_bytes", fill_bytes_kernel, dim3(kBlocks), kThreads, static_cast<unsigned char*>(to), count,
         seed);
}

void check_elements(const CudaExecution& execution, const CheckedElements& args) {
  visit_floating(args.product.d.dtype, [&]<class Out>() {
    launch(execution, "check_elements", check_elements_kernel<Out>, dim3(kBlocks), kThreads, args);
  });
}

void check_sums(const CudaExecution& execution, const ConstMatrix& matrix, const ConstVector& sums,
                unsigned long long* faults) {
  launch(execution, "check_sums", check_sums_kernel,
         dim3(static_cast<unsigned>((matrix.cols + kColumns - 1) / kColumns)), kThreads, matrix, sums, faults);
}

void check_poison(const CudaExecution& execution, const void* from, std::int64_t rows, std::int64_t width,
                  std::int64_t pitch, unsigned char pattern, unsigned long long* faults) {
  if (rows <= 0 || width <= 0) return;
  launch(execution, "check_poison", check_poison_kernel, dim3(kBlocks), kThreads,
         static_cast<const unsigned char*>(from), rows, width, pitch, pattern, faults);
}

}  // namespace fusegrad::detail
