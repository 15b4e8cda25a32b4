#include <algorithm>
#include <array>

#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/cuda/nvtx.h>
#include <fusegrad/autograd/execution.h>
#include <fusegrad/autograd/profile.h>
#include <fusegrad/autograd/trace_log.h>

namespace fusegrad::detail {

ProfileRange::ProfileRange(ContextState& context, ProfilePhase phase, std::string_view name) {
  // What a Step's function does on a GPU is done on several streams or by a graph: the call is one event.
  const bool one_event = context.step_run() && context.cuda();
  if (context.trace() && !one_event) {
    event_ = context.trace()->begin(phase, name);
    log_ = context.trace();
  }
  if constexpr (kWithCuda) {
    if (!context.annotated()) return;
    std::array<char, 96> text{};  // longer names are cut
    char* end = std::ranges::copy(name.substr(0, text.size() / 2), text.begin()).out;
    std::ranges::copy(suffix_of(phase), end);
    begin_nvtx_range(text.data(), phase);
    annotated_ = true;
  }
}

void ProfileRange::close() noexcept {
  if constexpr (kWithCuda) {
    if (annotated_) end_nvtx_range();
  }
  if (log_) log_->end(event_);
}

void ProfileRange::output(const Shape& shape, Dtype dtype) {
  TraceEvent& event = log_->event(event_);
  event.shape = shape;
  event.dtype = dtype;
}

void ProfileRange::note(std::string_view text) {
  auto& notes = log_->event(event_).notes;
  const auto free = std::ranges::find(notes, std::string_view());
  if (free != notes.end()) *free = text;
}

}  // namespace fusegrad::detail
