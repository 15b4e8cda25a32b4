// Streams and events as values: the order of work on a GPU. Not installed.
#pragma once

#include <cstdint>

struct CUstream_st;
struct CUevent_st;

namespace fusegrad::detail {

/// A stream of the current device: its own, which does not wait for the legacy default stream, or one that the caller
/// lends and keeps alive.
class Stream {
 public:
  /// Whose work goes first where several streams of steps have some; the rest fills what is left.
  enum class Priority : std::uint8_t { first, second, last };

  /// Errors: CudaError.
  Stream();
  explicit Stream(Priority priority);
  /// Borrows `stream`; null makes an own one.
  explicit Stream(CUstream_st* stream);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  CUstream_st* get() const { return stream_; }
  /// Waits until all work on the stream is done. Errors: CudaError, also of earlier kernels.
  void synchronize() const;
  /// True if all work on the stream is done. Errors: CudaError, also of earlier kernels.
  bool is_idle() const;
  /// True while a graph is being captured from the stream. Errors: CudaError.
  bool capturing() const;
  /// GPU that the stream belongs to. Errors: CudaError.
  int device() const;

 private:
  CUstream_st* stream_ = nullptr;
  bool owned_ = false;
};

/// A point in a stream's work that another stream, or the host, can wait for. Keeps no time.
class Event {
 public:
  /// Errors: CudaError.
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  CUevent_st* get() const { return event_; }
  /// Moves the point to the present end of `stream`. Errors: CudaError.
  void record(CUstream_st* stream);
  /// Work that `stream` is given from now on starts after the point. Errors: CudaError.
  void make_wait(CUstream_st* stream) const;
  /// The host waits for the point. Errors: CudaError.
  void synchronize() const;

 private:
  CUevent_st* event_ = nullptr;
};

/// A point in a stream's work and the time at which it was reached.
class TimedEvent {
 public:
  /// Errors: CudaError.
  TimedEvent();
  ~TimedEvent();
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  /// Moves the point to the present end of `stream`. Errors: CudaError.
  void record(CUstream_st* stream);
  /// The host waits for the point. Errors: CudaError.
  void synchronize() const;
  /// Time from `before` to this, both reached. Errors: CudaError.
  double microseconds_since(const TimedEvent& before) const;

 private:
  CUevent_st* event_ = nullptr;
};

}  // namespace fusegrad::detail
