#include <array>

#include <nvtx3/nvToolsExt.h>

#include <fusegrad/autograd/cuda/nvtx.h>

namespace fusegrad::detail {
namespace {

/// Null without a tool. One a process, as the tool itself, which NVTX looks for once.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t made = nvtxDomainCreateA("fusegrad");
  return made;
}

}  // namespace

bool has_nvtx_tool() { return domain() != nullptr; }

void begin_nvtx_range(const char* text, ProfilePhase phase) noexcept {
  constexpr std::array<std::uint32_t, 4> kColors{0xFF4C9F70, 0xFF3B7EA1, 0xFFC98B2B, 0xFF8A8A8A};  // ARGB, by phase
  nvtxEventAttributes_t attributes = {};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.colorType = NVTX_COLOR_ARGB;
  attributes.color = kColors[static_cast<std::size_t>(phase)];
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = text;
  nvtxDomainRangePushEx(domain(), &attributes);
}

void end_nvtx_range() noexcept { nvtxDomainRangePop(domain()); }

}  // namespace fusegrad::detail
