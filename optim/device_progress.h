// What of an optimizer's state a GPU keeps in its memory, because a captured step changes it in every repetition: step
// counts, the learning rate, and the scalars that follow from them. Not installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <fusegrad/autograd/tensor.h>
#include <fusegrad/optim/optimizer_kernels.h>

namespace fusegrad::detail {

class DeviceProgress {
 public:
  /// Step counts of 0. `scalar_bytes`: of one parameter's scalars. Errors: OutOfMemoryError; CudaError.
  DeviceProgress(const Context& context, std::size_t parameters, std::size_t scalar_bytes, double learning_rate);

  /// Waits for the GPU. Errors: CudaError; StateError inside of a Step's function.
  std::vector<std::int64_t> steps() const;
  /// The same errors.
  void set_steps(std::span<const std::int64_t> steps);
  /// Takes effect in the order of the context's work; waits for nothing.
  void set_learning_rate(double learning_rate);
  /// The next passes divide by the loss scale 1 / `factor`; in the order of the context's work.
  void set_gradient_factor(double factor);

  /// Of `count` parameters from `first` on.
  kernels::DeviceProgress view(std::size_t first, std::size_t count);
  void* scalars(std::size_t first);

 private:
  void set(std::size_t place, double value);

  Context context_;
  std::size_t parameters_;
  std::size_t scalar_bytes_;
  // In one block: learning rate, gradient factor, then the counts, then the scalars.
  Tensor memory_;
};

}  // namespace fusegrad::detail
