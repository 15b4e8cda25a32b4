// The state that Context handles share. Not installed.
#pragma once

#include <memory>
#include <vector>

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/cpu/thread_pool.h>
#include <fusegrad/autograd/memory.h>

namespace fusegrad::detail {

class TapeState;

class ContextState : public std::enable_shared_from_this<ContextState> {
 public:
  ContextState(std::unique_ptr<Backend> backend, int threads, Fusion fusion)
      : memory_(std::move(backend)), pool_(threads), fusion_(fusion) {}

  MemoryCache& memory() { return memory_; }
  Backend& backend() { return memory_.backend(); }
  ThreadPool& pool() { return pool_; }
  Counters& counters() { return counters_; }
  Fusion fusion() const { return fusion_; }
  /// Storage of finished tapes, taken up by the next one, so that a tape a step allocates nothing.
  std::vector<std::shared_ptr<TapeState>>& idle_tapes() { return idle_tapes_; }

 private:
  MemoryCache memory_;
  ThreadPool pool_;
  Counters counters_;
  Fusion fusion_;
  std::vector<std::shared_ptr<TapeState>> idle_tapes_;
};

}  // namespace fusegrad::detail
