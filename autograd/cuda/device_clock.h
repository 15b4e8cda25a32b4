// Times of points in the work of a context's stream. Not installed.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include <fusegrad/autograd/cuda/stream.h>

namespace fusegrad::detail {

class CudaBackend;

class DeviceClock {
 public:
  /// Waits for the work so far; time 0 is then. `backend` outlives the last mark.
  /// Errors: StateError if its stream is being captured; CudaError.
  explicit DeviceClock(const CudaBackend& backend);

  /// Marks the present end of the stream and returns the mark's number, from 1. TraceEvent::kNoMark while the stream is
  /// being captured: a graph has no time. Errors: CudaError.
  std::size_t mark();
  /// Microseconds from time 0 to each mark; [0] is 0. Waits for the last. Valid until the next mark. Errors: CudaError.
  std::span<const double> times();

 private:
  using Mark = std::unique_ptr<TimedEvent>;

  const CudaBackend& backend_;
  std::vector<double> times_;
  Mark last_;  // the one of times_.back()
  std::vector<Mark> pending_;
};

}  // namespace fusegrad::detail
