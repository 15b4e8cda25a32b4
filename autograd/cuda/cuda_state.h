// What launching functions need of their context beside the stream: scratch memory, settings, counters, cuBLASLt. No
// CUDA header is needed to include this. Not installed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/execution.h>

namespace fusegrad::detail {

class CudaBackend;
struct DeviceFault;  // fault.h
class StepStreams;   // graph.h
class Stopwatch;     // stopwatch.h
class Blaslt;        // ops/cuda/blaslt.h: handle and workspace; the engine only holds it
class PlanTable;     // ops/cuda/plan_table.h: the plans of products; the engine only holds it
class LinearWays;    // ops/cuda/linear_ways.h: measured choices; the engine only holds them

/// Device memory for the kernels that are launched while this lives. Whoever takes the block next uses it after them,
/// since all work of a context runs in the order of its stream.
class Scratch {
 public:
  Scratch(MemoryCache& memory, std::size_t bytes) : memory_(memory), block_(memory.take(bytes)) {}
  ~Scratch() { memory_.give_back(block_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// Uninitialised, aligned to 256 bytes.
  void* data() const { return block_->data; }

 private:
  MemoryCache& memory_;
  Storage* block_;
};

/// What every kernel of a context may use, in device memory: set up once, at one address as long as the context lives.
class KernelWords {
 public:
  static constexpr std::size_t kTickets = 1024;  ///< of each line of a step (branches.h)

  /// Errors: OutOfMemoryError; CudaError.
  explicit KernelWords(CudaBackend& backend);
  ~KernelWords();
  KernelWords(const KernelWords&) = delete;
  KernelWords& operator=(const KernelWords&) = delete;

  /// Counters by which the blocks of a kernel find out which of them comes last. They are 0 between kernels: a kernel
  /// resets what it counted up.
  unsigned* tickets(int line) const;
  /// One word for a result that the host reads before the next kernel runs.
  unsigned* result() const;
  /// Where kernels report values that only they could check.
  DeviceFault* fault() const;

 private:
  CudaBackend& backend_;
  void* block_;
};

/// The GPU side of a context. Everything that takes time or memory to set up is set up by the constructor.
class CudaState {
 public:
  /// `context` owns this and has a CudaBackend. Errors: CudaError; DeviceError for an unfit cuBLASLt.
  explicit CudaState(ContextState& context);
  /// Saves plans that the context has measured, if it has a plan cache.
  ~CudaState();
  CudaState(const CudaState&) = delete;
  CudaState& operator=(const CudaState&) = delete;

  int device() const;
  /// Where work goes that is about to be enqueued.
  CUstream_st* stream();
  CudaBackend& backend() { return backend_; }
  MemoryCache& memory() { return context_.memory(); }
  /// At least `bytes` of scratch memory. Errors: OutOfMemoryError.
  Scratch scratch(std::size_t bytes) { return Scratch(memory(), bytes); }

  /// Line of a step that gets work now (branches.h): what kernels of one line share, those of another must not.
  int line() const;
  unsigned* tickets() const { return words_.tickets(line()); }
  unsigned* result() const { return words_.result(); }
  DeviceFault* fault() const { return words_.fault(); }
  Blaslt& blaslt() { return *blaslt_; }
  PlanTable& plan_table() { return *plan_table_; }
  LinearWays& ways() { return *ways_; }
  /// For the choices of this context; made at its first use. Errors: CudaError.
  Stopwatch& stopwatch();
  /// What steps run on; made at its first use. Errors: CudaError.
  StepStreams& step_streams();
  /// True while a graph is being captured: nothing can be measured or verified then.
  bool capturing() const;
  PlanPolicy plan_policy() const { return context_.plan_policy(); }
  /// True if a Step's function runs.
  bool stepping() const { return context_.step_run() != nullptr; }
  Counters& counters() { return context_.counters(); }
  const ContextSettings& settings() const { return context_.settings(); }
  /// Adds to Context::warnings().
  void warn(std::string text) { context_.warnings().push_back(std::move(text)); }

 private:
  ContextState& context_;
  CudaBackend& backend_;
  KernelWords words_;
  std::unique_ptr<Stopwatch> stopwatch_;
  std::shared_ptr<Blaslt> blaslt_;
  std::shared_ptr<PlanTable> plan_table_;
  std::shared_ptr<LinearWays> ways_;
  std::shared_ptr<StepStreams> step_streams_;
};

/// While this lives, work is tried on the stopwatch's stream: no line of the context has any, and memory is not taken
/// from a step's arena. Errors: CudaError.
class Aside {
 public:
  explicit Aside(CudaState& state);
  ~Aside();
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

 private:
  MemoryCache& memory_;
};

/// The state of a context on GPU `device`, on `stream` or, if that is null, a stream of its own.
/// Errors: DeviceError if there is no such GPU or this build cannot use it; CudaError.
std::shared_ptr<ContextState> make_cuda_context(const ContextSettings& settings, int device, CUstream_st* stream);

/// Defined in ops/cuda/blaslt.cpp. `backend` outlives the result. Errors: CudaError; DeviceError.
std::shared_ptr<Blaslt> make_blaslt(CudaBackend& backend, const ContextSettings& settings);

/// Defined in ops/cuda/plan_table.cpp. `backend` and `blaslt` outlive the result.
std::shared_ptr<PlanTable> make_plan_table(CudaBackend& backend, Blaslt& blaslt, const ContextSettings& settings);

/// Defined in ops/cuda/blaslt.cpp: bytes that it holds as workspaces.
std::int64_t workspace_bytes(const Blaslt& blaslt);

/// Defined in ops/cuda/linear_ways.cpp.
std::shared_ptr<LinearWays> make_linear_ways();

/// Defined in ops/cuda/plans.cpp: reads the file that the settings name, if they name one, and adds to it what the
/// context has measured, if it has. A file that cannot be read or written is a warning, or nothing.
void load_plan_cache(CudaState& state);
void save_plan_cache(CudaState& state) noexcept;

}  // namespace fusegrad::detail
