#include <cmath>
#include <string_view>

#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/ops/activation_functions.h>
#include <fusegrad/ops/cuda/access.cuh>
#include <fusegrad/ops/cuda/launch.cuh>
#include <fusegrad/ops/cuda/simple_product.h>
#include <fusegrad/ops/cuda/trial.h>

namespace fusegrad::detail {
namespace {

using kernels::ComputeOf;
using kernels::convert;
using kernels::launch;
using kernels::load_one;
using kernels::store_one;

constexpr int kThreads = 256;
constexpr unsigned kBlocks = 1056;
constexpr std::int64_t kGuard = 4096;  // bytes behind each output

/// Counts of what is wrong.
enum Fault : int { wrong_elements, wrong_saved, wrong_sums, written_outside, kFaults };

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

struct CheckArgs {
  LtProduct product;
  const void* reference;  // [rows, cols] of the accumulation dtype
  const void* former;     // c, with its leading dimension; or null
  unsigned long long* faults;
};

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
__global__ void check_elements_kernel(CheckArgs args) {
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

/// Compares `sums` with the column sums of `matrix`, in fp64. A block takes 32 columns.
__global__ void check_sums_kernel(ConstMatrix matrix, ConstVector sums, unsigned long long* faults) {
  constexpr int kColumns = 32;
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

void check_poison(const CudaExecution& execution, const void* from, std::int64_t rows, std::int64_t width,
                  std::int64_t pitch, unsigned char pattern, unsigned long long* faults) {
  if (rows <= 0 || width <= 0) return;
  launch(execution, "check_poison", check_poison_kernel, dim3(kBlocks), kThreads,
         static_cast<const unsigned char*>(from), rows, width, pitch, pattern, faults);
}

std::int64_t bytes_of(const ConstMatrix& matrix) {
  return matrix.data ? matrix.rows * matrix.ld * static_cast<std::int64_t>(size_of(matrix.dtype)) : 0;
}

std::int64_t bias_bytes(const LtProduct& product) {
  return bias_pointer(product) ? bias_size(product) * static_cast<std::int64_t>(size_of(product.d.dtype)) : 0;
}

std::int64_t reference_bytes(const LtProduct& product) {
  return product.d.rows * product.d.cols * static_cast<std::int64_t>(size_of(accumulation_dtype(product.a.dtype)));
}

constexpr std::int64_t kAlignment = 256;

/// Cuts a block into pieces, or only adds them up where there is none yet.
class Cutter {
 public:
  explicit Cutter(void* block) : block_(static_cast<unsigned char*>(block)) {}

  /// `bytes` and a guard, aligned as `like` is and no better; null for null.
  void* take(std::int64_t bytes, const void* like) {
    if (!like) return nullptr;
    const std::int64_t offset = alignment_of(like) % kAlignment;
    unsigned char* piece = block_ ? block_ + used_ + offset : nullptr;
    used_ += (offset + bytes + kGuard + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  std::int64_t used() const { return used_; }

 private:
  unsigned char* block_;
  std::int64_t used_ = 0;
};

constexpr std::uintptr_t kWellAligned = 256;

struct Pieces {
  void* a;
  void* b;
  void* c;
  void* d;
  void* bias;
  void* saved;
  void* reference;
  void* faults;
};

Pieces cut(Cutter& cutter, const LtProduct& like) {
  const auto* well_aligned = reinterpret_cast<const void*>(kWellAligned);
  return {.a = cutter.take(bytes_of(like.a), like.a.data),
          .b = cutter.take(bytes_of(like.b), like.b.data),
          .c = cutter.take(bytes_of(like.c), like.c.data),
          .d = cutter.take(bytes_of(like.d), like.d.data),
          .bias = cutter.take(bias_bytes(like), bias_pointer(like)),
          .saved = cutter.take(saved_bytes(like), like.saved),
          .reference = cutter.take(reference_bytes(like), well_aligned),
          .faults = cutter.take(kFaults * sizeof(unsigned long long), well_aligned)};
}

}  // namespace

void fill_normal(const CudaExecution& execution, const Vector& to, std::uint32_t seed) {
  if (!to.data || to.size == 0) return;
  launch(execution, "fill", fill_kernel, dim3(kBlocks), kThreads, to, -1.0f, seed);
}

std::unique_ptr<Trial> Trial::make(CudaBackend& backend, const LtProduct& like) {
  Cutter sizes(nullptr);
  cut(sizes, like);
  void* block = backend.allocate(static_cast<std::size_t>(sizes.used()));
  if (!block) return nullptr;
  backend.stream().synchronize();  // the trial runs on another stream
  return std::unique_ptr<Trial>(new Trial(backend, block, like));
}

Trial::Trial(CudaBackend& backend, void* block, const LtProduct& like)
    : backend_(backend), block_(block), product_(like) {
  Cutter cutter(block);
  const Pieces pieces = cut(cutter, like);
  product_.a.data = pieces.a;
  product_.b.data = pieces.b;
  product_.d.data = pieces.d;
  product_.c.data = like.c.data == like.d.data ? pieces.d : pieces.c;
  if (like.bias_gradient) {
    product_.bias_gradient = pieces.bias;
  } else {
    product_.bias = pieces.bias;
  }
  product_.saved = pieces.saved;
  former_ = pieces.c;
  reference_ = pieces.reference;
  faults_ = static_cast<unsigned long long*>(pieces.faults);
}

Trial::~Trial() { backend_.release(block_); }

void Trial::fill(const CudaExecution& execution) {
  has_reference_ = false;
  const auto put = [&](const void* to, std::int64_t bytes, Dtype dtype, std::uint32_t seed) {
    fill_normal(execution, {const_cast<void*>(to), bytes / static_cast<std::int64_t>(size_of(dtype)), dtype}, seed);
  };
  const LtProduct& p = product_;
  put(p.a.data, bytes_of(p.a), p.a.dtype, 1);
  put(p.b.data, bytes_of(p.b), p.b.dtype, 3);
  put(p.c.data, bytes_of(p.c), p.c.dtype, 5);
  put(bias_pointer(p), bias_bytes(p), p.d.dtype, 7);
  if (is_relu_mask(p.epilogue) && p.saved) {
    launch(execution, "fill_bytes", fill_bytes_kernel, dim3(kBlocks), kThreads, static_cast<unsigned char*>(p.saved),
           saved_bytes(p), 9u);
  } else {
    put(p.saved, saved_bytes(p), p.d.dtype, 9);
  }
}

void Trial::fill_exactly(const CudaExecution& execution) {
  const auto put = [&](const void* to, std::int64_t bytes, Dtype dtype, double density, std::uint32_t seed) {
    if (!to || bytes == 0) return;
    const Vector vector{const_cast<void*>(to), bytes / static_cast<std::int64_t>(size_of(dtype)), dtype};
    launch(execution, "fill", fill_kernel, dim3(kBlocks), kThreads, vector, static_cast<float>(density), seed);
  };
  const LtProduct& p = product_;
  // Sums have a standard deviation of at most 32, so that bf16, which is exact up to 256, holds them all.
  const double density = std::min(1.0, 32 / std::sqrt(static_cast<double>(reduction_length(p))));
  fill(execution);  // what backward reads of forward is as it is in training
  put(p.a.data, bytes_of(p.a), p.a.dtype, density, 11);
  put(p.b.data, bytes_of(p.b), p.b.dtype, density, 13);
  put(former_, bytes_of(p.c), p.c.dtype, 0.75, 15);
  put(p.bias, bias_bytes(p), p.d.dtype, 0.75, 17);
  kernels::simple_product(execution, {.a = p.a,
                                      .transpose_a = p.transpose_a,
                                      .b = p.b,
                                      .transpose_b = p.transpose_b,
                                      .d = {reference_, p.d.rows, p.d.cols, p.d.cols, accumulation_dtype(p.a.dtype)}});
  has_reference_ = true;
}

void Trial::poison(const CudaExecution& execution, unsigned char pattern) {
  const LtProduct& p = product_;
  const auto poison = [&](void* data, std::int64_t bytes) {
    if (!data) return;
    FUSEGRAD_CUDA(cudaMemsetAsync(data, pattern, static_cast<std::size_t>(bytes + kGuard), execution.stream));
  };
  poison(p.d.data, bytes_of(p.d));
  poison(p.bias_gradient, p.bias_gradient ? bias_bytes(p) : 0);
  if (!is_backward(p.epilogue)) poison(p.saved, saved_bytes(p));
  if (p.c.data && p.c.data == p.d.data) {  // the rows only: what is between them stays poison
    const std::size_t element = size_of(p.d.dtype);
    const std::size_t pitch = static_cast<std::size_t>(p.d.ld) * element;
    FUSEGRAD_CUDA(cudaMemcpy2DAsync(p.d.data, pitch, former_, pitch, static_cast<std::size_t>(p.d.cols) * element,
                                    static_cast<std::size_t>(p.d.rows), cudaMemcpyDeviceToDevice, execution.stream));
  }
}

std::string_view Trial::verify(const CudaExecution& execution, const std::function<bool(const LtProduct&)>& launch_it) {
  constexpr unsigned char kPatterns[] = {0xFF, 0x5A};  // NaN, and a number in every dtype
  if (!has_reference_) fill_exactly(execution);
  const LtProduct& p = product_;
  for (const unsigned char pattern : kPatterns) {
    FUSEGRAD_CUDA(cudaMemsetAsync(faults_, 0, kFaults * sizeof *faults_, execution.stream));
    poison(execution, pattern);
    if (!launch_it(p)) return "it was refused";
    const CheckArgs args{p, reference_, p.c.data ? former_ : nullptr, faults_};
    visit_floating(p.d.dtype, [&]<class Out>() {
      launch(execution, "check_elements", check_elements_kernel<Out>, dim3(kBlocks), kThreads, args);
    });
    const auto element = static_cast<std::int64_t>(size_of(p.d.dtype));
    const auto* d = static_cast<const unsigned char*>(p.d.data);
    check_poison(execution, d + p.d.cols * element, p.d.rows - 1, (p.d.ld - p.d.cols) * element, p.d.ld * element,
                 pattern, faults_);
    check_poison(execution, d + bytes_of(p.d), 1, kGuard, 0, pattern, faults_);
    if (p.saved && !is_backward(p.epilogue)) {
      check_poison(execution, static_cast<const unsigned char*>(p.saved) + saved_bytes(p), 1, kGuard, 0, pattern,
                   faults_);
    }
    if (p.bias_gradient) {
      check_poison(execution, static_cast<const unsigned char*>(p.bias_gradient) + bias_bytes(p), 1, kGuard, 0, pattern,
                   faults_);
      const ConstMatrix terms = p.epilogue == Epilogue::bgradb ? p.a : ConstMatrix(p.d);
      launch(execution, "check_sums", check_sums_kernel, dim3(static_cast<unsigned>((terms.cols + 31) / 32)), kThreads,
             terms, ConstVector{p.bias_gradient, bias_size(p), p.d.dtype}, faults_);
    }
    unsigned long long faults[kFaults] = {};
    FUSEGRAD_CUDA(cudaMemcpyAsync(faults, faults_, sizeof faults, cudaMemcpyDeviceToHost, execution.stream));
    FUSEGRAD_CUDA(cudaStreamSynchronize(execution.stream));
    if (faults[wrong_elements] != 0) return "the output is wrong";
    if (faults[wrong_saved] != 0) return "what is saved for backward is wrong";
    if (faults[wrong_sums] != 0) return "the bias gradient is wrong";
    if (faults[written_outside] != 0) return "it writes outside its output";
  }
  return {};
}

}  // namespace fusegrad::detail
