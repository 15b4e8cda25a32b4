// The events that a Trace records. Not installed.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/profile.h>

namespace fusegrad::detail {

class DeviceClock;  // cuda/device_clock.h

struct TraceEvent {
  static constexpr std::size_t kNoMark = SIZE_MAX;

  std::string name;
  ProfilePhase phase = ProfilePhase::forward;
  std::int64_t begin = 0;  ///< on the host, in nanoseconds since the trace began
  std::int64_t end = -1;   ///< -1: it has not ended
  /// Marks of the device's clock around the work; kNoMark: none.
  std::size_t device_begin = kNoMark;
  std::size_t device_end = kNoMark;
  std::optional<Shape> shape = std::nullopt;  ///< of what was made
  Dtype dtype = Dtype::f32;
  std::array<std::string_view, 8> notes = {};  ///< those given are in front
};

class TraceLog {
 public:
  /// For the work of `context`, whose state outlives it. On a GPU it waits for the work so far. Errors: CudaError.
  explicit TraceLog(const Context& context);

  /// Opens an event and returns its number. Errors: CudaError.
  std::size_t begin(ProfilePhase phase, std::string_view name);
  void end(std::size_t number) noexcept;
  TraceEvent& event(std::size_t number) { return events_[number]; }
  std::size_t size() const { return events_.size(); }

  /// All events that have ended. On a GPU it waits for the last. Errors: CudaError.
  std::string to_json() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t now() const { return std::chrono::nanoseconds(Clock::now() - start_).count(); }

  Device device_;
  std::shared_ptr<DeviceClock> device_clock_;  // null on a CPU
  Clock::time_point start_;
  std::deque<TraceEvent> events_;  // grows without moving: a long trace has no pauses
};

}  // namespace fusegrad::detail
