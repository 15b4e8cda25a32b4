// A step as one CUDA graph: captured once, launched as often as wanted. Not installed.
#pragma once

#include <functional>
#include <memory>

#include <fusegrad/autograd/cuda/cuda_branches.h>
#include <fusegrad/autograd/cuda/stream.h>

struct CUgraphExec_st;

namespace fusegrad::detail {

class CudaState;

/// What the steps of a context run on beside its stream. Made when the first one is.
class StepStreams {
 public:
  /// Errors: CudaError.
  explicit StepStreams(CudaBackend& backend) : branches_(backend) {}

  CudaBranches& branches() { return branches_; }
  const Stream& capture() const { return capture_; }

 private:
  CudaBranches branches_;
  Stream capture_{Stream::Priority::first};  // the main line of a graph
};

class Graph {
 public:
  /// What `function` enqueues, on streams of the steps' own; none of it runs. Errors: whatever `function` throws;
  /// StateError if it did what cannot be captured; CudaError. Then the context works as before.
  static std::unique_ptr<Graph> capture(CudaState& state, const std::function<void()>& function);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Enqueues all of it on `stream`. Errors: CudaError.
  void launch(const Stream& stream) const;
  /// Kernels, copies and fills.
  std::int64_t size() const { return size_; }

 private:
  Graph(CUgraphExec_st* executable, std::int64_t size) : executable_(executable), size_(size) {}

  CUgraphExec_st* executable_;
  std::int64_t size_;
};

}  // namespace fusegrad::detail
