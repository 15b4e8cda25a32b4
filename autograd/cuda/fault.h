// What kernels found wrong with values that were made on the GPU: the host could not check them without waiting.
//
// A fault is sticky. From the kernel that reports it on, optimizers change nothing; the next read of a result, or wait,
// on the context throws it and clears it. Not installed.
#pragma once

#include <cstdint>
#include <string>

namespace fusegrad::detail {

/// One context's fault, in device memory. Its words are unsigned long long because CUDA's atomic functions want that.
struct DeviceFault {
  static constexpr std::int64_t kFloatingValue = std::int64_t{1} << 31;

  /// Address, on the host, of a static message with {0} for the index, {1} for the value and {2} for the bound; 0: no
  /// fault.
  unsigned long long text = 0;
  /// The index in the upper 32 bits, with kFloatingValue if the value is a float; the value's bits in the lower ones.
  unsigned long long place = ~0ull;
  std::int64_t bound = 0;

  /// The message. Only with a fault.
  std::string message() const;
};

}  // namespace fusegrad::detail
