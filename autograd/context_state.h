// The state that Context handles share. Not installed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/cpu/thread_pool.h>
#include <fusegrad/autograd/memory.h>

namespace fusegrad::detail {

class TapeState;
class CudaState;

/// The options of a context after environment and defaults.
struct ContextSettings {
  int threads = 1;
  Fusion fusion = Fusion::on;
  MathMode math = MathMode::fp32;
  Strategy strategy = Strategy::automatic;
  PlanPolicy plans = PlanPolicy::heuristic;
  bool deterministic = false;
  std::string plan_cache = {};  ///< path; empty: none
};

class ContextState : public std::enable_shared_from_this<ContextState> {
 public:
  ContextState(std::unique_ptr<Backend> backend, const ContextSettings& settings)
      : memory_(std::move(backend)), pool_(settings.threads), settings_(settings) {}

  MemoryCache& memory() { return memory_; }
  Backend& backend() { return memory_.backend(); }
  ThreadPool& pool() { return pool_; }
  Counters& counters() { return counters_; }
  const ContextSettings& settings() const { return settings_; }
  std::vector<std::string>& warnings() { return warnings_; }
  Fusion fusion() const { return settings_.fusion; }
  /// Null on a CPU.
  CudaState* cuda() const { return cuda_.get(); }
  void attach(std::shared_ptr<CudaState> cuda) { cuda_ = std::move(cuda); }
  /// Storage of finished tapes, taken up by the next one, so that a tape a step allocates nothing.
  std::vector<std::shared_ptr<TapeState>>& idle_tapes() { return idle_tapes_; }

 private:
  MemoryCache memory_;
  ThreadPool pool_;
  Counters counters_;
  ContextSettings settings_;
  std::vector<std::string> warnings_;
  std::vector<std::shared_ptr<TapeState>> idle_tapes_;
  std::shared_ptr<CudaState> cuda_;  // last, because it gives its memory back to the backend
};

}  // namespace fusegrad::detail
