// Ranges that NVIDIA's profilers show, in the NVTX domain "fusegrad". Not installed.
#pragma once

#include <fusegrad/autograd/profile.h>

namespace fusegrad::detail {

/// True if a tool that collects ranges runs this program.
bool has_nvtx_tool();

/// Opens a range of the calling thread; `text` is copied. Only where there is a tool.
void begin_nvtx_range(const char* text, ProfilePhase phase) noexcept;
/// Ends the range of the calling thread that was opened last.
void end_nvtx_range() noexcept;

}  // namespace fusegrad::detail
