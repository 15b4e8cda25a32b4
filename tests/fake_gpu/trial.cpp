// Measurement and verification without a clock and without the kernels of a real trial: every call takes less time than
// the one before, and a result is right if it is what operands of ones must give. The fake cuBLASLt has an algorithm
// that gives another.
#include <cmath>

#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/autograd/cuda/stopwatch.h>
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/autograd/narrow.h>
#include <fusegrad/ops/cuda/trial.h>
#include <fusegrad/ops/cuda/trial_kernels.h>

namespace fusegrad::detail {
namespace {

void fill(const Vector& to, double value) {
  if (!to.data) return;
  visit_floating(to.dtype, [&]<class T>() { std::fill_n(static_cast<T*>(to.data), to.size, narrow<T>(value)); });
}
Vector all_of(const ConstMatrix& matrix) {
  return {const_cast<void*>(matrix.data), matrix.rows * matrix.ld, matrix.dtype};
}
std::int64_t bytes_of(const ConstMatrix& matrix) {
  return matrix.data ? matrix.rows * matrix.ld * static_cast<std::int64_t>(size_of(matrix.dtype)) : 0;
}

bool is_gelu(Epilogue e) { return e >= Epilogue::gelu && e <= Epilogue::gelu_aux_bias; }
bool is_dgelu(Epilogue e) { return e == Epilogue::dgelu || e == Epilogue::dgelu_bgrad; }

}  // namespace

void fill_normal(const CudaExecution&, const Vector& to, std::uint32_t) { fill(to, 1); }

Trial::Trial(CudaBackend& backend, void* block, const LtProduct& like)
    : backend_(backend), block_(block), product_(like) {}

std::int64_t Trial::bytes() const { return 0; }

Trial::~Trial() { backend_.release(block_); }

std::unique_ptr<Trial> Trial::make(CudaBackend& backend, const LtProduct& like) {
  constexpr std::int64_t kSpare = 512;
  const std::int64_t vector = bias_size(like) * static_cast<std::int64_t>(size_of(like.d.dtype));
  const std::int64_t bytes = bytes_of(like.a) + bytes_of(like.b) + bytes_of(like.c) + bytes_of(like.d) + 2 * vector +
                             saved_bytes(like) + 8 * kSpare;
  void* const block = backend.allocate(static_cast<std::size_t>(bytes));
  if (!block) return nullptr;
  std::unique_ptr<Trial> trial(new Trial(backend, block, like));
  auto* next = static_cast<std::byte*>(block);
  const auto take = [&](const void* pointer, std::int64_t size) -> void* {
    if (!pointer) return nullptr;
    std::byte* const at = next + alignment_of(pointer) % 256;
    next += (size + 255) / 256 * 256 + 256;
    return at;
  };
  LtProduct& p = trial->product_;
  p.a.data = take(p.a.data, bytes_of(p.a));
  p.b.data = take(p.b.data, bytes_of(p.b));
  const bool same = p.c.data == p.d.data;
  p.d.data = take(p.d.data, bytes_of(p.d));
  p.c.data = same ? p.d.data : take(p.c.data, bytes_of(p.c));
  p.bias = take(p.bias, vector);
  p.bias_gradient = take(p.bias_gradient, vector);
  p.saved = take(p.saved, saved_bytes(p));
  return trial;
}

void Trial::fill(const CudaExecution&) {
  const LtProduct& p = product_;
  detail::fill(all_of(p.a), 1);
  detail::fill(all_of(p.b), 1);
  detail::fill(all_of(p.d), 1);
  detail::fill(all_of(p.c), 1);
  detail::fill({const_cast<void*>(p.bias), bias_size(p), p.d.dtype}, 0);
  if (is_relu_mask(p.epilogue)) {
    std::fill_n(static_cast<unsigned char*>(p.saved), saved_bytes(p), static_cast<unsigned char>(0xFF));
  } else if (p.saved) {
    detail::fill({p.saved, p.d.rows * p.saved_ld, p.d.dtype}, 0);
  }
}

std::string_view Trial::verify(const CudaExecution& execution, const std::function<bool(const LtProduct&)>& launch) {
  fill(execution);
  const LtProduct& p = product_;
  if (!launch(p)) return "it was refused";
  double expected = static_cast<double>(reduction_length(p)) + (p.c.data ? 1 : 0);
  if (is_gelu(p.epilogue)) expected *= 0.5 * (1 + std::erf(expected / std::sqrt(2.0)));
  if (is_dgelu(p.epilogue)) expected *= 0.5;
  const double error = visit_floating(p.d.dtype, [&]<class T>() {
    const auto* row = static_cast<const T*>(p.d.data);
    double most = 0;
    for (std::int64_t i = 0; i < p.d.rows; ++i, row += p.d.ld)
      for (std::int64_t j = 0; j < p.d.cols; ++j) {
        most = std::max(most, std::abs(static_cast<double>(row[j]) - expected));
      }
    return most;
  });
  return error <= 0.01 * expected ? "" : "the output is wrong";
}

Stopwatch::Stopwatch() = default;
Stopwatch::~Stopwatch() = default;

std::vector<double> Stopwatch::compare(std::span<const std::function<void()>> calls, double, bool) {
  std::vector<double> us;
  for (const std::function<void()>& call : calls) {
    call();
    us.push_back(100 / static_cast<double>(1 + us.size()));
  }
  return us;
}

}  // namespace fusegrad::detail
