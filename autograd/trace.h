// A timeline of eager work: every op, backward node and optimizer step with its begin and duration, as a file for
// chrome://tracing and https://ui.perfetto.dev.
//
//   fusegrad::Trace trace(context);
//   for (int step = 0; step < 20; ++step) { ... }
//   trace.write("steps.json");
//
// On a CPU the times are the host's. On a GPU there are two rows: one for the host, which enqueues, and one for the
// device, timed by events that are recorded around each op; those cost the host about a microsecond an op, and where
// the host is the bottleneck the device's row has gaps. A call of a Step is one event; on a GPU what its function does
// is not shown op by op, since it runs as a graph.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <fusegrad/autograd/context.h>

namespace fusegrad {

/// Records what a context does until stop() or its own end, in about 300 bytes an event. May be moved; one that was
/// moved from can only be assigned to or destroyed: all else is a StateError.
class Trace {
 public:
  /// Records from now on; on a GPU, after the work so far, for which it waits. The trace keeps the context alive.
  /// Errors: StateError if another Trace records on this context, a Step's function runs, or the context's stream is
  /// being captured; CudaError.
  explicit Trace(const Context& context);
  Trace(Trace&&) noexcept;
  Trace& operator=(Trace&&) noexcept;
  ~Trace();

  /// Records no more. What was recorded can still be written; another Trace may begin.
  void stop();
  /// Number of events so far.
  std::int64_t size() const;
  /// Writes all events that have ended, in the trace event format: JSON, times in microseconds since the trace began,
  /// "cat" one of "forward", "backward", "optimizer" and "step". An op's "args" have the "shape" and "dtype" of its
  /// output, and as "notes" what Tape::explain() says about how it ran. Waits for the device. The file is replaced as a
  /// whole or stays as it was.
  /// Errors: IoError if the file cannot be written; StateError if a Step's function runs on this GPU; CudaError.
  void write(const std::string& path) const;

 private:
  class Impl;
  Impl& impl() const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace fusegrad
