// How kernels report values that only they could check. Not installed.
#pragma once

#include <cstdint>

#include <fusegrad/autograd/cuda/fault.h>

namespace fusegrad::kernels {

/// A check of a kernel: where its failures are reported, and as what.
struct FaultSite {
  detail::DeviceFault* fault;
  const char* text;  ///< of the host, see DeviceFault

  /// `value` of element `index` failed; of several failures the one with the smallest index is kept. index < 2^31.
  __device__ void report(std::int64_t index, std::int32_t value, std::int64_t bound) const {
    claim(index, static_cast<std::uint32_t>(value), bound);
  }
  __device__ void report(std::int64_t index, float value) const {
    claim(index | detail::DeviceFault::kFloatingValue, __float_as_uint(value), 0);
  }

 private:
  __device__ void claim(std::int64_t index, std::uint32_t value, std::int64_t bound) const {
    const auto own = reinterpret_cast<std::uintptr_t>(text);
    const std::uint64_t former = atomicCAS(&fault->text, 0ull, static_cast<unsigned long long>(own));
    if (former != 0 && former != own) return;  // another check failed before
    atomicMin(&fault->place, static_cast<unsigned long long>(index) << 32 | value);
    fault->bound = bound;  // equal for all that get here
  }
};

}  // namespace fusegrad::kernels
