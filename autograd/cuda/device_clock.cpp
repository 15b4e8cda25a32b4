#include <utility>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/cuda/device.h>
#include <fusegrad/autograd/cuda/device_clock.h>
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/autograd/trace_log.h>

namespace fusegrad::detail {

DeviceClock::DeviceClock(const CudaBackend& backend) : backend_(backend), times_{0} {
  require<StateError>(!backend.own_stream().capturing(),
                      "trace: the context's stream is being captured; a graph has no times");
  const DeviceScope scope(backend.device().index);
  last_ = std::make_unique<TimedEvent>();
  last_->record(backend.own_stream().get());
  last_->synchronize();
}

std::size_t DeviceClock::mark() {
  const Stream& stream = backend_.own_stream();
  if (stream.capturing()) return TraceEvent::kNoMark;
  const DeviceScope scope(backend_.device().index);
  auto event = std::make_unique<TimedEvent>();
  event->record(stream.get());
  pending_.push_back(std::move(event));
  return times_.size() + pending_.size() - 1;
}

std::span<const double> DeviceClock::times() {
  if (pending_.empty()) return times_;
  pending_.back()->synchronize();
  std::vector<double> times = times_;
  times.reserve(times_.size() + pending_.size());
  // From mark to mark: the runtime returns milliseconds in fp32, which after a minute from time 0 are 4 us apart.
  const TimedEvent* before = last_.get();
  for (const Mark& mark : pending_) {
    times.push_back(times.back() + mark->microseconds_since(*before));
    before = mark.get();
  }
  times_ = std::move(times);
  last_ = std::move(pending_.back());
  pending_.clear();
  return times_;
}

}  // namespace fusegrad::detail
