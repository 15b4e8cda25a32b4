#include <algorithm>
#include <cmath>

#include <cuda_runtime_api.h>

#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/ops/cuda/simple_product.h>
#include <fusegrad/ops/cuda/trial.h>
#include <fusegrad/ops/cuda/trial_kernels.h>

namespace fusegrad::detail {
namespace {

constexpr std::int64_t kGuard = 4096;  // bytes behind each output

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

std::int64_t Trial::bytes() const {
  const LtProduct& p = product_;
  const std::int64_t added = p.c.data == p.d.data ? 0 : bytes_of(p.c);
  return bytes_of(p.a) + bytes_of(p.b) + added + bytes_of(p.d) + bias_bytes(p) + saved_bytes(p);
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
    fill_bytes(execution, p.saved, saved_bytes(p), 9);
  } else {
    put(p.saved, saved_bytes(p), p.d.dtype, 9);
  }
}

void Trial::fill_exactly(const CudaExecution& execution) {
  const auto put = [&](const void* to, std::int64_t bytes, Dtype dtype, double density, std::uint32_t seed) {
    const Vector vector{const_cast<void*>(to), bytes / static_cast<std::int64_t>(size_of(dtype)), dtype};
    fill_thinly(execution, vector, density, seed);
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

std::string_view Trial::verify(const CudaExecution& execution, const std::function<bool(const LtProduct&)>& launch) {
  constexpr unsigned char kPatterns[] = {0xFF, 0x5A};  // NaN, and a number in every dtype
  if (!has_reference_) fill_exactly(execution);
  const LtProduct& p = product_;
  for (const unsigned char pattern : kPatterns) {
    FUSEGRAD_CUDA(cudaMemsetAsync(faults_, 0, kFaults * sizeof *faults_, execution.stream));
    poison(execution, pattern);
    if (!launch(p)) return "it was refused";
    check_elements(execution,
                   {.product = p, .reference = reference_, .former = p.c.data ? former_ : nullptr, .faults = faults_});
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
      check_sums(execution, terms, {p.bias_gradient, bias_size(p), p.d.dtype}, faults_);
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
