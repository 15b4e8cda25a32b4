#include <atomic>
#include <bit>

#include <fusegrad/optim/cpu/flat_pass.h>

namespace fusegrad::kernels {
namespace {

/// True if any element is an infinity or a NaN: its exponent bits are all ones. Integer work without an early exit, so
/// that it runs in vectors at the speed of memory.
template <class Bits, class T>
bool any_nonfinite(const T* elements, std::int64_t count) {
  constexpr Bits kExponent = sizeof(T) == 8 ? Bits(0x7ff0000000000000u) : Bits(0x7f800000u);
  Bits found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    found |= (std::bit_cast<Bits>(elements[i]) & kExponent) == kExponent ? Bits{1} : Bits{0};
  }
  return found != 0;
}

}  // namespace

std::int64_t first_nonfinite(const CpuExecution& execution, ConstVector gradients, std::span<const FlatSlot> slots) {
  const auto none = static_cast<std::int64_t>(slots.size());
  std::atomic<std::int64_t> first{none};
  for_each_piece(execution, slots, [&](std::int64_t slot, std::int64_t begin, std::int64_t end) {
    const std::int64_t count = end - begin;
    const bool found = gradients.dtype == Dtype::f64
                           ? any_nonfinite<std::uint64_t>(static_cast<const double*>(gradients.data) + begin, count)
                           : any_nonfinite<std::uint32_t>(static_cast<const float*>(gradients.data) + begin, count);
    if (!found) return;
    std::int64_t seen = first.load(std::memory_order_relaxed);
    while (slot < seen && !first.compare_exchange_weak(seen, slot, std::memory_order_relaxed)) {
    }
  });
  const std::int64_t found = first.load(std::memory_order_relaxed);
  return found == none ? -1 : found;
}

}  // namespace fusegrad::kernels
