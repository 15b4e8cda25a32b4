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
#include <string_view>
#include <vector>

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

/// How products of f32 operands are computed on a GPU: in IEEE fp32, or with operands rounded to tf32 (10 explicit
/// mantissa bits), sums in fp32, several times as fast. A CPU always computes in fp32.
enum class MathMode : std::uint8_t { fp32, tf32 };

/// How a GPU runs one fused backward step: where the activation gradient is applied to dx, and where the bias gradient
/// of the layer below is summed. All give the same result within rounding.
///   epilogue  both in the product (cuBLASLt's DRELU_BGRAD, DGELU_BGRAD)
///   split     activation gradient in the product, bias gradient in the next weight-gradient product (BGRADB)
///   pass      a plain product, then one kernel for both
///   automatic the one that the library thinks fastest: pass for bf16 and f16, epilogue for f32 and f64
/// A CPU has one way, whatever the strategy.
enum class Strategy : std::uint8_t { automatic, epilogue, split, pass };

constexpr std::string_view name_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::automatic: return "automatic";
    case Strategy::epilogue: return "epilogue";
    case Strategy::split: return "split";
    case Strategy::pass: return "pass";
  }
  return "?";
}

/// How a GPU chooses the strategy of a fused step and the algorithm of each product.
///   heuristic  by rank: the library's order of strategies, cuBLASLt's order of algorithms
///   measure    the first use of each shape times every candidate on this card, in private memory, and takes the
///              fastest whose results are verified; that takes milliseconds to seconds a shape. See ops/plans.h to
///              keep plans.
/// With ContextOptions::deterministic nothing is timed, whatever the policy, but every algorithm is verified. A CPU has
/// one way, whatever the policy.
enum class PlanPolicy : std::uint8_t { heuristic, measure };

/// Who multiplies f32 matrices on a CPU (and 16-bit ones, whose products are taken in fp32).
///   eigen   the library's own kernels on Eigen's vector primitives; always there, and the reference
///   onednn  oneDNN for the products that it does faster, the same kernels for the rest; if the library was built
///           with it
/// f64 and everything else on a CPU is the library's own. Both are right within the same bounds and neither depends on
/// the number of threads, but their bits differ.
enum class ProductLibrary : std::uint8_t { eigen, onednn };

constexpr std::string_view name_of(ProductLibrary library) {
  return library == ProductLibrary::onednn ? "onednn" : "eigen";
}

/// Options of a Context. An option left unset takes its environment variable, then its default.
struct ContextOptions {
  /// CPU threads, the caller's included. Unset: FUSEGRAD_THREADS, else the cores this process may run on.
  /// Results do not depend on it. Range: 1 to 1024.
  std::optional<int> threads = std::nullopt;
  /// Unset: FUSEGRAD_FUSION ("on" or "off"), else on.
  std::optional<Fusion> fusion = std::nullopt;
  /// Unset: FUSEGRAD_ONEDNN ("on" or "off"), else onednn if the library was built with it. A GPU has no use for it.
  std::optional<ProductLibrary> products = std::nullopt;
  /// Ordinal of the GPU. Used by Context::cuda and Context::best.
  int device = 0;
  /// A CUDA stream of the caller's to run on, which must outlive the context and every tensor on it; null: the context
  /// makes its own.
  CUstream_st* stream = nullptr;
  MathMode math = MathMode::fp32;
  /// Unset: FUSEGRAD_STRATEGY ("epilogue", "split" or "pass"), else automatic.
  std::optional<Strategy> strategy = std::nullopt;
  /// Unset: FUSEGRAD_PLANS ("heuristic" or "measure"), else heuristic.
  std::optional<PlanPolicy> plans = std::nullopt;
  /// GPU: the same bits in every run of the same program on the same card and library versions. Excludes algorithms
  /// that may sum in a varying order. A CPU's results are deterministic anyway.
  bool deterministic = false;
  /// File that keeps a GPU's plans from one run of a program to the next (see ops/plans.h); "": none. A context reads
  /// it when it is made, and, if it has measured something since, adds that when it is destroyed. A file that does not
  /// fit is ignored, and warnings() says why. Unset: FUSEGRAD_PLAN_CACHE, else none. A CPU has no plans to keep.
  std::optional<std::string> plan_cache = std::nullopt;
};

/// What a context has done so far; all counts start at 0 and only grow.
struct Counters {
  std::int64_t products = 0;            ///< matrix products, forward and backward
  std::int64_t fused_forwards = 0;      ///< linear forwards whose bias and activation were applied inside the product
  std::int64_t unfused_steps = 0;       ///< fused steps that ran their unfused definition
  std::int64_t missing_algorithms = 0;  ///< fused products for which cuBLASLt has no algorithm, so that another way ran
  std::int64_t absorbed = 0;            ///< activation gradients applied by the consumer's product, or right behind it
  std::int64_t absorbed_biases = 0;     ///< bias gradients summed there
  std::int64_t activation_passes = 0;   ///< activation gradients that needed a pass of their own
  std::int64_t fused_bias_sums = 0;  ///< bias gradients summed inside an activation pass or a weight-gradient product
  std::int64_t column_sums = 0;      ///< bias gradients summed by a pass of their own
  std::int64_t aliases = 0;          ///< gradients handed on without a copy
  std::int64_t plan_hits = 0;        ///< products whose plan was known
  std::int64_t plan_misses = 0;      ///< plans made; constant in steady state
  std::int64_t plan_evictions = 0;   ///< plans dropped because there were too many
  std::int64_t plan_uses = 0;        ///< products that cuBLASLt ran
  std::int64_t plans_measured = 0;   ///< plans and fused steps whose candidates were timed
  std::int64_t plans_loaded = 0;     ///< plans and fused steps whose choice was taken from a file
  std::int64_t rejected_candidates = 0;  ///< algorithms that gave wrong results when they were verified, and those of a
                                         ///< file that cuBLASLt does not offer
};

/// Bytes held by a context.
struct MemoryUse {
  std::int64_t in_use = 0;              ///< bytes of live tensors made by the context
  std::int64_t peak_in_use = 0;         ///< largest value of in_use so far
  std::int64_t cached = 0;              ///< bytes kept for reuse
  std::int64_t workspace = 0;           ///< bytes held beside all these for the products of a GPU
  std::int64_t system_allocations = 0;  ///< blocks ever requested from the system; constant in steady state
};

namespace detail {
class ContextState;
}

/// A handle to a device and its resources. Copies share state.
class Context {
 public:
  /// The first GPU (or the one that the options name) if the library was built with CUDA and there is one that it can
  /// use, else the CPU. Errors: as cuda(), if there is a GPU but not the one named.
  static Context best(const ContextOptions& options = {});
  /// The CPU. Errors: ValueError for an option or environment variable out of range, or if it asks for oneDNN and the
  /// library was built without it.
  static Context cpu(const ContextOptions& options = {});
  /// A GPU. Errors: DeviceError if the library was built without CUDA, there is no such GPU, the library has no code
  /// for it, the stream is another GPU's, or cuBLASLt is too old; ValueError; CudaError.
  static Context cuda(const ContextOptions& options = {});

  Device device() const;
  /// CPU threads that kernels and loaders may use, the caller's included.
  int threads() const;
  Fusion fusion() const;
  ProductLibrary products() const;
  MathMode math() const;
  Strategy strategy() const;
  PlanPolicy plan_policy() const;
  bool deterministic() const;
  const Counters& counters() const;
  MemoryUse memory() const;
  /// What was ignored and why, oldest first: a plan file that does not fit, a plan of a file that is wrong. The library
  /// prints nothing. Valid as long as the context.
  const std::vector<std::string>& warnings() const;
  /// Waits for all work on this context. Nothing to do on a CPU. Errors: CudaError.
  void synchronize() const;
  /// Gives cached memory back to the system. Live tensors are not touched.
  void release_cached_memory() const;

  // A move copies: no handle is ever empty.
  Context(const Context&) = default;
  Context& operator=(const Context&) = default;
  ~Context() = default;

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
