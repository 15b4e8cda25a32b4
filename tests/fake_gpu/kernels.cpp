// The library's own GPU kernels, by the CPU's: what launches them, and what cuBLASLt does between them, is what the
// fake GPU is there to test.
#include <algorithm>
#include <cstring>

#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/elementwise.h>
#include <fusegrad/autograd/cuda/fault.h>
#include <fusegrad/autograd/cuda/loss_history.h>
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/autograd/narrow.h>
#include <fusegrad/ops/activation_kernels.h>
#include <fusegrad/ops/arithmetic_kernels.h>
#include <fusegrad/ops/cuda/simple_product.h>
#include <fusegrad/ops/linear_kernels.h>
#include <fusegrad/ops/mse_loss_kernels.h>
#include <fusegrad/ops/softmax_cross_entropy_kernels.h>
#include <fusegrad/optim/optimizer_kernels.h>
#include <fusegrad/optim/update_functions.h>

namespace fusegrad {
namespace {

CpuExecution host() {
  static detail::ThreadPool pool(1);
  return {pool};
}

template <class F>
void advance(const CudaExecution& execution, const kernels::DeviceProgress& progress, F&& update) {
  if (execution.state.fault()->text != 0) return;
  for (std::int64_t slot = 0; slot < progress.slots; ++slot) {
    update(slot, ++progress.steps[slot], *progress.learning_rate, *progress.gradient_factor);
  }
}

}  // namespace

namespace detail {

void append_loss(CUstream_st*, LossWords* words, std::int64_t kept, const void* loss, Dtype dtype) {
  words->losses[words->count++ % kept] =
      dtype == Dtype::f64 ? *static_cast<const double*>(loss) : double{*static_cast<const float*>(loss)};
}

void fill_elements(CUstream_st*, void* to, const void* element, std::size_t element_bytes, std::int64_t count) {
  auto* bytes = static_cast<std::byte*>(to);
  for (std::int64_t i = 0; i < count; ++i, bytes += element_bytes) std::memcpy(bytes, element, element_bytes);
}

void convert_elements(CUstream_st*, void* to, Dtype to_dtype, const void* from, Dtype from_dtype, std::int64_t count) {
  visit_any(from_dtype, [&]<class From>() {
    visit_floating(to_dtype, [&]<class To>() {
      const auto* source = static_cast<const From*>(from);
      std::transform(source, source + count, static_cast<To*>(to),
                     [](From value) { return narrow<To>(static_cast<double>(value)); });
    });
  });
}

bool kernels_run_on_current_device() { return true; }

}  // namespace detail

namespace kernels {

void activation_forward(const CudaExecution&, const ActivationForward& args) { activation_forward(host(), args); }
void activation_backward(const CudaExecution&, const ActivationBackward& args) { activation_backward(host(), args); }
void weighted_sum(const CudaExecution&, const WeightedSum& args) { weighted_sum(host(), args); }
void multiply_add(const CudaExecution&, const MultiplyAdd& args) { multiply_add(host(), args); }
void sum(const CudaExecution&, const Sum& args) { sum(host(), args); }
void broadcast(const CudaExecution&, const Broadcast& args) { broadcast(host(), args); }
void column_sum(const CudaExecution&, const ColumnSum& args) { column_sum(host(), args); }
void mse_loss_forward(const CudaExecution&, const MseLossForward& args) { mse_loss_forward(host(), args); }
void mse_loss_backward(const CudaExecution&, const MseLossBackward& args) { mse_loss_backward(host(), args); }
void softmax_cross_entropy_forward(const CudaExecution&, const SoftmaxCrossEntropyForward& args) {
  softmax_cross_entropy_forward(host(), args);
}
void softmax_cross_entropy_backward(const CudaExecution&, const SoftmaxCrossEntropyBackward& args) {
  softmax_cross_entropy_backward(host(), args);
}
template <class Args>
Args with_scalars(Args args) {
  if (args.device_scalars) args.scalars = {args.device_scalars, args.parameters.slots.size()};
  return args;
}
void sgd_step(const CudaExecution&, const SgdStep& args) { sgd_step(host(), with_scalars(args)); }
void adam_step(const CudaExecution&, const AdamStep& args) { adam_step(host(), with_scalars(args)); }
void advance_sgd(const CudaExecution& execution, const AdvanceSgd& args) {
  advance(execution, args.progress, [&](std::int64_t slot, std::int64_t t, double rate, double factor) {
    args.scalars[slot] = sgd_scalars(rate, t, factor, args.momentum, args.dampening);
  });
}
void advance_adam(const CudaExecution& execution, const AdvanceAdam& args) {
  advance(execution, args.progress, [&](std::int64_t slot, std::int64_t t, double rate, double factor) {
    args.scalars[slot] = adam_scalars(rate, t, factor, args.beta1, args.beta2, args.decoupled_decay);
  });
}
std::int64_t first_nonfinite(const CudaExecution&, ConstVector gradients, std::span<const FlatSlot> slots) {
  return first_nonfinite(host(), gradients, slots);
}

void simple_product(const CudaExecution&, const SimpleProduct& args) {
  const bool ta = args.transpose_a == Transpose::yes;
  const bool tb = args.transpose_b == Transpose::yes;
  const std::int64_t k = ta ? args.a.rows : args.a.cols;
  const auto at = [](const ConstMatrix& matrix, std::int64_t i, std::int64_t j) {
    return detail::visit_floating(matrix.dtype, [&]<class T>() {
      return static_cast<double>(static_cast<const T*>(matrix.data)[i * matrix.ld + j]);
    });
  };
  for (std::int64_t i = 0; i < args.d.rows; ++i)
    for (std::int64_t j = 0; j < args.d.cols; ++j) {
      double total = 0;
      for (std::int64_t p = 0; p < k; ++p) {
        total += (ta ? at(args.a, p, i) : at(args.a, i, p)) * (tb ? at(args.b, j, p) : at(args.b, p, j));
      }
      if (args.c.data) total += at(args.c, i, j);
      detail::visit_floating(
          args.d.dtype, [&]<class T>() { static_cast<T*>(args.d.data)[i * args.d.ld + j] = detail::narrow<T>(total); });
    }
}

}  // namespace kernels
}  // namespace fusegrad
