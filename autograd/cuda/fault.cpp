#include <bit>

#include <fmt/format.h>

#include <fusegrad/autograd/cuda/fault.h>

namespace fusegrad::detail {

std::string DeviceFault::message() const {
  const char* format =
      reinterpret_cast<const char*>(static_cast<std::uintptr_t>(text));  // NOLINT(performance-no-int-to-ptr)
  const auto upper = static_cast<std::int64_t>(place >> 32);
  const auto bits = static_cast<std::uint32_t>(place);
  const std::int64_t index = upper & ~kFloatingValue;
  if (upper & kFloatingValue) return fmt::format(fmt::runtime(format), index, std::bit_cast<float>(bits), bound);
  return fmt::format(fmt::runtime(format), index, static_cast<std::int32_t>(bits), bound);
}

}  // namespace fusegrad::detail
