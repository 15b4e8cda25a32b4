#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/device_clock.h>
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/autograd/execution.h>
#include <fusegrad/autograd/file.h>
#include <fusegrad/autograd/trace.h>
#include <fusegrad/autograd/trace_log.h>

namespace fusegrad {
namespace detail {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kHostRow = 1;
constexpr int kDeviceRow = 2;

std::string_view category_of(ProfilePhase phase) {
  switch (phase) {
    case ProfilePhase::forward: return "forward";
    case ProfilePhase::backward: return "backward";
    case ProfilePhase::optimizer: return "optimizer";
    case ProfilePhase::step: return "step";
  }
  return "";
}

Json row_name(int row, std::string_view name) {
  return {{"name", "thread_name"}, {"ph", "M"}, {"pid", 1}, {"tid", row}, {"args", {{"name", name}}}};
}

Json arguments_of(const TraceEvent& event) {
  Json arguments = Json::object();
  if (event.shape) {
    arguments["shape"] = event.shape->extents();
    arguments["dtype"] = name_of(event.dtype);
  }
  for (const std::string_view note : event.notes) {
    if (!note.empty()) arguments["notes"].push_back(note);
  }
  return arguments;
}

/// `begin` and `end` in nanoseconds.
Json to_json(const TraceEvent& event, int row, std::int64_t begin, std::int64_t end) {
  return {{"name", event.name + std::string(suffix_of(event.phase))},
          {"cat", category_of(event.phase)},
          {"ph", "X"},
          {"pid", 1},
          {"tid", row},
          {"ts", static_cast<double>(begin) / 1e3},
          {"dur", static_cast<double>(end - begin) / 1e3},
          {"args", arguments_of(event)}};
}

}  // namespace

TraceLog::TraceLog(const Context& context) : device_(context.device()) {
  if constexpr (kWithCuda) {
    if (CudaState* cuda = context.state().cuda()) device_clock_ = std::make_shared<DeviceClock>(cuda->backend());
  }
  start_ = Clock::now();
}

std::size_t TraceLog::begin(ProfilePhase phase, std::string_view name) {
  TraceEvent event{.name = std::string(name), .phase = phase};
  if constexpr (kWithCuda) {
    if (device_clock_) event.device_begin = device_clock_->mark();
  }
  events_.push_back(std::move(event));
  // Last, and first in end(): the marks are no work of the host's.
  events_.back().begin = now();
  return events_.size() - 1;
}

void TraceLog::end(std::size_t number) noexcept {
  TraceEvent& event = events_[number];
  event.end = now();
  if constexpr (kWithCuda) {
    if (device_clock_) {
      try {
        event.device_end = device_clock_->mark();
      } catch (...) {
        // Then the device's row lacks the event. If the device has failed, whoever uses it next will hear of it.
      }
    }
  }
}

std::string TraceLog::to_json() const {
  Json all = Json::array();
  all.push_back({{"name", "process_name"}, {"ph", "M"}, {"pid", 1}, {"args", {{"name", "fusegrad"}}}});
  all.push_back(row_name(kHostRow, device_clock_ ? "host" : device_.to_string()));
  if (device_clock_) all.push_back(row_name(kDeviceRow, device_.to_string()));
  for (const TraceEvent& event : events_) {
    if (event.end >= 0) all.push_back(detail::to_json(event, kHostRow, event.begin, event.end));
  }
  if constexpr (kWithCuda) {
    if (device_clock_) {
      const std::span<const double> times = device_clock_->times();
      const auto time_of = [&](std::size_t mark) { return std::llround(times[mark] * 1e3); };
      for (const TraceEvent& event : events_) {
        if (event.device_begin == TraceEvent::kNoMark || event.device_end == TraceEvent::kNoMark) continue;
        all.push_back(detail::to_json(event, kDeviceRow, time_of(event.device_begin), time_of(event.device_end)));
      }
    }
  }
  const Json file{{"displayTimeUnit", "ns"}, {"traceEvents", std::move(all)}};
  // A name may be any bytes.
  return file.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace detail

using detail::require;

class Trace::Impl {
 public:
  explicit Impl(const Context& context) : context_(context) {
    detail::ContextState& state = context_.state();
    require<StateError>(!state.trace(), "trace: another trace records on this context; stop it first");
    require<StateError>(!state.step_run(),
                        "trace: a trace cannot begin inside a step function: make it before the call");
    log_ = std::make_shared<detail::TraceLog>(context_);
    state.set_trace(log_);
  }
  ~Impl() { stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void stop() {
    if (context_.state().trace() == log_) context_.state().set_trace(nullptr);
  }
  std::int64_t size() const { return static_cast<std::int64_t>(log_->size()); }
  void write(const std::string& path) const {
    context_.state().check_host_copy("a trace was written");
    const std::string text = log_->to_json();
    detail::OutputFile file("trace", path);
    file.write(text.data(), text.size());
    file.commit();
  }

 private:
  Context context_;
  std::shared_ptr<detail::TraceLog> log_;
};

Trace::Trace(const Context& context) : impl_(std::make_unique<Impl>(context)) {}
Trace::Trace(Trace&&) noexcept = default;
Trace& Trace::operator=(Trace&&) noexcept = default;
Trace::~Trace() = default;

Trace::Impl& Trace::impl() const {
  require<StateError>(impl_ != nullptr, "trace: it was moved from");
  return *impl_;
}

void Trace::stop() { impl().stop(); }
std::int64_t Trace::size() const { return impl().size(); }
void Trace::write(const std::string& path) const { impl().write(path); }

}  // namespace fusegrad
