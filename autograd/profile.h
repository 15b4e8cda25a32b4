// What profilers show of a step: a range for each op, backward node, optimizer step and call of a Step.
//
// A range is open as long as its object lives. It becomes an event of the context's Trace, if there is one (trace.h),
// and an NVTX range of the domain "fusegrad" if a tool that collects those runs the program (Nsight Systems, for
// example) and the GPU backend was built. Without either it costs one test of a flag.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include <fusegrad/autograd/dtype.h>
#include <fusegrad/autograd/shape.h>

namespace fusegrad::detail {

class ContextState;
class TraceLog;

/// What work a range is; its name is the op's, with " backward" or " step" behind it for backward and optimizers.
enum class ProfilePhase : std::uint8_t { forward, backward, optimizer, step };

constexpr std::string_view suffix_of(ProfilePhase phase) {
  switch (phase) {
    case ProfilePhase::backward: return " backward";
    case ProfilePhase::optimizer: return " step";
    default: return "";
  }
}

/// Made by ContextState::profile(). Ranges of one thread end in the reverse order of their beginnings.
class ProfileRange {
 public:
  ProfileRange() = default;  ///< no range
  /// Opens a range; `name` is copied. Errors: CudaError.
  ProfileRange(ContextState& context, ProfilePhase phase, std::string_view name);
  ProfileRange(ProfileRange&& other) noexcept
      : log_(std::move(other.log_)), event_(other.event_), annotated_(std::exchange(other.annotated_, false)) {}
  ProfileRange& operator=(ProfileRange&& other) noexcept {
    std::swap(log_, other.log_);
    std::swap(event_, other.event_);
    std::swap(annotated_, other.annotated_);
    return *this;
  }
  ~ProfileRange() {
    if (log_ || annotated_) [[unlikely]]
      close();
  }

  /// True if the range is an event of a Trace: only then is there any use in describing it.
  bool traced() const { return log_ != nullptr; }
  /// What the work made. Only where traced().
  void output(const Shape& shape, Dtype dtype);
  /// How it ran: text that lives as long as the context; an empty one is none. Only where traced().
  void note(std::string_view text);

 private:
  void close() noexcept;

  std::shared_ptr<TraceLog> log_;
  std::size_t event_ = 0;
  bool annotated_ = false;  ///< an NVTX range is open
};

}  // namespace fusegrad::detail
