// Where work runs and where memory comes from: a device, a thread pool or stream, cached memory and counters.
//
// A Context is a handle to shared state; tensors, tapes and parameter sets keep that state alive. There are no globals:
// two contexts are independent. One context is used by one thread at a time and may be handed from thread to thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

struct CUstream_st;  // a borrowed CUDA stream, without CUDA's headers

namespace fusegrad {

enum class DeviceType : std::uint8_t { cpu, cuda };

/// A place where tensors live.
struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  bool operator==(const Device&) const = default;
  /// "cpu" or "cuda:0".
  std::string to_string() const;
};

/// Whether fused ops run as one fused kernel, or as their unfused definition: the product in fp32 (fp64 for fp64),
/// separate kernels in that precision, one rounding at the end. The unfused definition is the reference of the tests
/// and of the gradient checker; it is not a fast path.
enum class Fusion : std::uint8_t { on, off };

/// Options of a Context. An option left unset takes its environment variable, then its default.
struct ContextOptions {
  /// CPU threads, the caller's included. Unset: FUSEGRAD_THREADS, else the cores this process may run on.
  /// Results do not depend on it. Range: 1 to 1024.
  std::optional<int> threads = std::nullopt;
  /// Unset: FUSEGRAD_FUSION ("on" or "off"), else on.
  std::optional<Fusion> fusion = std::nullopt;
  /// Ordinal of the GPU. Used by Context::cuda and Context::best.
  int device = 0;
  /// A CUDA stream of the caller's to run on; null: the context makes its own.
  CUstream_st* stream = nullptr;
};

/// What a context has done so far; all counts start at 0 and only grow.
struct Counters {
  std::int64_t products = 0;           ///< matrix products, forward and backward
  std::int64_t fused_forwards = 0;     ///< linear forwards whose bias and activation were applied inside the product
  std::int64_t unfused_steps = 0;      ///< fused steps that ran their unfused definition
  std::int64_t absorbed = 0;           ///< activation gradients applied inside the consumer's product
  std::int64_t absorbed_biases = 0;    ///< bias gradients summed inside the consumer's product
  std::int64_t activation_passes = 0;  ///< activation gradients that needed a pass of their own
  std::int64_t fused_bias_sums = 0;    ///< bias gradients summed inside an activation pass or a weight-gradient product
  std::int64_t column_sums = 0;        ///< bias gradients summed by a pass of their own
  std::int64_t aliases = 0;            ///< gradients handed on without a copy
};

/// Bytes held by a context.
struct MemoryUse {
  std::int64_t in_use = 0;              ///< bytes of live tensors made by the context
  std::int64_t peak_in_use = 0;         ///< largest value of in_use so far
  std::int64_t cached = 0;              ///< bytes kept for reuse
  std::int64_t system_allocations = 0;  ///< blocks ever requested from the system; constant in steady state
};

namespace detail {
class ContextState;
}

/// A handle to a device and its resources. Copies share state.
class Context {
 public:
  /// The first GPU if the library was built with CUDA and there is one, else the CPU.
  static Context best(const ContextOptions& options = {});
  /// The CPU. Errors: ValueError for an option or environment variable out of range.
  static Context cpu(const ContextOptions& options = {});
  /// A GPU. Errors: DeviceError if the library was built without CUDA or there is no such GPU; ValueError; CudaError.
  static Context cuda(const ContextOptions& options = {});

  Device device() const;
  /// CPU threads that kernels and loaders may use, the caller's included.
  int threads() const;
  Fusion fusion() const;
  const Counters& counters() const;
  MemoryUse memory() const;
  /// Waits for all work on this context. Nothing to do on a CPU. Errors: CudaError.
  void synchronize() const;
  /// Gives cached memory back to the system. Live tensors are not touched.
  void release_cached_memory() const;

  /// True if both handles share state.
  bool operator==(const Context&) const = default;

  /// For ops and modules inside fusegrad.
  detail::ContextState& state() const { return *state_; }
  const std::shared_ptr<detail::ContextState>& shared_state() const { return state_; }
  explicit Context(std::shared_ptr<detail::ContextState> state) : state_(std::move(state)) {}

 private:
  std::shared_ptr<detail::ContextState> state_;
};

}  // namespace fusegrad
