// The losses of a step's last calls, in memory that the host reads while later calls run. Not installed.
#pragma once

#include <cstdint>

#include <fusegrad/autograd/cuda/pinned_memory.h>
#include <fusegrad/autograd/cuda/stream.h>
#include <fusegrad/autograd/dtype.h>

namespace fusegrad::detail {

class CudaBackend;

/// Written by the GPU.
struct LossWords {
  std::int64_t count;  ///< losses so far
  double losses[1];    ///< the last ones, a ring; as many as are kept
};

/// Enqueues: words->losses[words->count++ % kept] = the f32 or f64 scalar at `loss`.
void append_loss(CUstream_st* stream, LossWords* words, std::int64_t kept, const void* loss, Dtype dtype);

class LossHistory {
 public:
  /// Errors: OutOfMemoryError; CudaError.
  explicit LossHistory(std::int64_t kept);

  /// Enqueues: one call more has computed its loss, the f32 or f64 scalar at `loss`. Part of each graph.
  void append(CUstream_st* stream, const void* loss, Dtype dtype);
  /// Loss of call number `call`, 0 for the first, of the last `kept`. Waits until it is computed. Errors: CudaError;
  /// ValueError for a fault that a kernel has reported.
  double at(std::int64_t call, CudaBackend& backend) const;

 private:
  LossWords* words();
  const LossWords* words() const;

  std::int64_t kept_;
  PinnedMemory memory_;  // LossWords
};

}  // namespace fusegrad::detail
