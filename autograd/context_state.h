// The state that Context handles share. Not installed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/cpu/thread_pool.h>
#include <fusegrad/autograd/memory.h>
#include <fusegrad/autograd/profile.h>
#include <fusegrad/autograd/tensor.h>

namespace fusegrad::detail {

class Branches;
class CudaState;
class StepRun;
class TapeState;

/// The options of a context after environment and defaults.
struct ContextSettings {
  int threads = 1;
  Fusion fusion = Fusion::on;
  ProductLibrary products = ProductLibrary::eigen;
  MathMode math = MathMode::fp32;
  Strategy strategy = Strategy::automatic;
  /// Empty: not chosen; heuristic, but measure in the first run of a Step.
  std::optional<PlanPolicy> plans = std::nullopt;
  bool deterministic = false;
  std::string plan_cache = {};  ///< path; empty: none
};

class ContextState : public std::enable_shared_from_this<ContextState> {
 public:
  ContextState(std::unique_ptr<Backend> backend, const ContextSettings& settings);
  ~ContextState();
  ContextState(const ContextState&) = delete;
  ContextState& operator=(const ContextState&) = delete;

  MemoryCache& memory() { return memory_; }
  Backend& backend() { return memory_.backend(); }
  ThreadPool& pool() { return pool_; }
  Counters& counters() { return counters_; }
  const ContextSettings& settings() const { return settings_; }
  std::vector<std::string>& warnings() { return warnings_; }
  Fusion fusion() const { return settings_.fusion; }
  PlanPolicy plan_policy() const {
    return settings_.plans.value_or(step_run_ ? PlanPolicy::measure : PlanPolicy::heuristic);
  }
  /// A scalar in the device's memory that is never written to again. Errors: as Tensor::full.
  Tensor constant(Dtype dtype, double value);
  /// The run of a Step's function that is going on; null if there is none.
  StepRun* step_run() const { return step_run_; }
  /// Where its work may run beside the main line; null if there are no branches.
  Branches* branches() const { return branches_; }
  /// A GPU's Step is run by this thread from now on; null ends that.
  void set_step(StepRun* run, Branches* branches);
  /// Errors: StateError if this thread runs a Step's function for another context, on a GPU: what that did here would
  /// happen when the graph is captured and never again.
  void check_usable() const {
    if (stepping && stepping != this) [[unlikely]]
      refuse_use();
  }
  /// Errors: StateError if a Step's function runs on this GPU, because `what` cannot be part of a graph.
  void check_host_copy(std::string_view what) const {
    if (step_run_ && cuda_) [[unlikely]]
      refuse_host_copy(what);
  }
  /// The range of some work, from now until it is destroyed; nothing unless anybody looks. Errors: CudaError.
  ProfileRange profile(ProfilePhase phase, std::string_view name) {
    if (profiled()) [[unlikely]]
      return {*this, phase, name};
    return {};
  }
  bool profiled() const { return annotated_ || trace_; }
  /// True if ranges are shown to a tool as well.
  bool annotated() const { return annotated_; }
  /// Where ranges are recorded; null without a Trace.
  const std::shared_ptr<TraceLog>& trace() const { return trace_; }
  void set_trace(std::shared_ptr<TraceLog> trace) { trace_ = std::move(trace); }
  /// Null on a CPU.
  CudaState* cuda() const { return cuda_.get(); }
  void attach(std::shared_ptr<CudaState> cuda) { cuda_ = std::move(cuda); }
  /// Storage of finished tapes, taken up by the next one, so that a tape a step allocates nothing.
  std::vector<std::shared_ptr<TapeState>>& idle_tapes() { return idle_tapes_; }

 private:
  [[noreturn]] void refuse_use() const;
  [[noreturn]] void refuse_host_copy(std::string_view what) const;

  // The one thing that belongs to a thread: a captured function may use other contexts by no way that they could see.
  static constinit thread_local const ContextState* stepping;

  MemoryCache memory_;
  ThreadPool pool_;
  Counters counters_;
  ContextSettings settings_;
  std::vector<std::string> warnings_;
  std::vector<std::shared_ptr<TapeState>> idle_tapes_;
  struct Constant {
    Dtype dtype;
    double value;
    Storage* storage;
  };
  std::vector<Constant> constants_;
  const bool annotated_;
  std::shared_ptr<TraceLog> trace_;
  StepRun* step_run_ = nullptr;
  Branches* branches_ = nullptr;
  std::shared_ptr<CudaState> cuda_;  // last, because it gives its memory back to the backend
};

/// What happens while this lives is no part of a Step's function, even if one runs: what is set up once, at its first
/// use. Work goes to the main line, memory comes from the cache, and the host may take part, unless a graph is being
/// captured.
class OutsideStep {
 public:
  explicit OutsideStep(ContextState& context);
  ~OutsideStep();
  OutsideStep(const OutsideStep&) = delete;
  OutsideStep& operator=(const OutsideStep&) = delete;

 private:
  ContextState& context_;
  StepRun* run_;
  Branches* branches_;
};

}  // namespace fusegrad::detail
