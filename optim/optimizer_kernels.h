// Kernels of optimizer steps: one pass over flat buffers. Not installed.
//
// A step names the parameters it touches as slots, in ascending order and disjoint; what depends on a parameter's own
// step count or loss scale is a small array of scalars, one entry a slot, computed by the caller in double. Elements
// outside the slots are neither read nor written. Masters and moments are f32 (f64 for f64) and so is the arithmetic;
// where values are 16-bit they are the new masters, rounded in the same pass.
//
// Every element is independent of all others, so results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <span>

#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/views.h>

namespace fusegrad::kernels {

/// Slots start at multiples of so many elements, as detail::ParameterStore has it.
inline constexpr std::int64_t kSlotElements = 128;

/// Elements [offset, offset + size) of every flat buffer: one parameter.
struct FlatSlot {
  std::int64_t offset = 0;  ///< a multiple of kSlotElements
  std::int64_t size = 0;
};

/// The flat buffers of a step.
struct FlatParameters {
  std::span<const FlatSlot> slots = {};
  ConstVector gradients = {};  ///< f32 (f64 for f64)
  Vector masters = {};         ///< the gradients' dtype; read and written
  Vector values = {};          ///< bf16 or f16: the rounded masters; or none if the masters are the values
};

/// What of an SGD step depends on the parameter.
struct SgdScalars {
  double gradient_factor = 1;  ///< reciprocal of the loss scale, a power of two
  double learning_rate = 0;
  double velocity_keep = 0;  ///< momentum; 0 at a parameter's first step
  double velocity_gain = 1;  ///< 1 - dampening; 1 at a parameter's first step
};

enum class Momentum : std::uint8_t { none, classic, nesterov };

/// g = gradient_factor gradient + weight_decay p
/// v = velocity_keep v + velocity_gain g
/// p -= learning_rate u, with u = g (none), v (classic) or g + momentum v (nesterov).
/// Bytes an element: 12, with momentum 20 (f32).
struct SgdStep {
  FlatParameters parameters = {};
  std::span<const SgdScalars> scalars = {};  ///< one a slot
  /// On a GPU: scalars in its memory, read when the step runs; then there are no others.
  const SgdScalars* device_scalars = nullptr;
  Momentum kind = Momentum::none;
  Vector velocity = {};  ///< none without momentum
  double momentum = 0;
  double weight_decay = 0;
};
void sgd_step(const CpuExecution& execution, const SgdStep& args);
/// Does nothing if the context has a fault (autograd/cuda/fault.h).
void sgd_step(const CudaExecution& execution, const SgdStep& args);

/// What of an Adam step depends on the parameter.
struct AdamScalars {
  double gradient_factor = 1;  ///< reciprocal of the loss scale, a power of two
  double step_size = 0;        ///< learning rate / (1 - beta1^t)
  double root_factor = 1;      ///< 1 / sqrt(1 - beta2^t)
  double decay = 0;            ///< learning rate * decoupled weight decay
};

/// g = gradient_factor gradient + coupled_decay p
/// m = beta1 m + (1 - beta1) g
/// v = beta2 v + (1 - beta2) g²
/// p -= decay p + step_size m / (root_factor sqrt(v) + epsilon), rounded once.
/// Bytes an element: 28 (f32).
struct AdamStep {
  FlatParameters parameters = {};
  std::span<const AdamScalars> scalars = {};  ///< one a slot
  /// On a GPU: scalars in its memory, read when the step runs; then there are no others.
  const AdamScalars* device_scalars = nullptr;
  Vector m = {};  ///< first moment
  Vector v = {};  ///< second moment
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double coupled_decay = 0;
};
void adam_step(const CpuExecution& execution, const AdamStep& args);
/// Does nothing if the context has a fault (autograd/cuda/fault.h).
void adam_step(const CudaExecution& execution, const AdamStep& args);

/// Step counts and rates in a GPU's memory: a captured graph of steps reads them in every replay.
struct DeviceProgress {
  std::int64_t slots = 0;
  std::int64_t* steps = nullptr;            ///< one a slot: updates so far
  const double* learning_rate = nullptr;    ///< one
  const double* gradient_factor = nullptr;  ///< one: reciprocal of the loss scale
};

/// Counts the steps up and writes the scalars of the next update, one a slot; does nothing if the context has a fault.
struct AdvanceSgd {
  DeviceProgress progress = {};
  double momentum = 0;
  double dampening = 0;
  SgdScalars* scalars = nullptr;
};
void advance_sgd(const CudaExecution& execution, const AdvanceSgd& args);

/// As AdvanceSgd.
struct AdvanceAdam {
  DeviceProgress progress = {};
  double beta1 = 0;
  double beta2 = 0;
  double decoupled_decay = 0;
  AdamScalars* scalars = nullptr;
};
void advance_adam(const CudaExecution& execution, const AdvanceAdam& args);

/// Index of the first slot that holds an infinity or a NaN; -1 if none does.
std::int64_t first_nonfinite(const CpuExecution& execution, ConstVector gradients, std::span<const FlatSlot> slots);
/// Waits for the GPU.
std::int64_t first_nonfinite(const CudaExecution& execution, ConstVector gradients, std::span<const FlatSlot> slots);

}  // namespace fusegrad::kernels
