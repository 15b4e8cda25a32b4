// Guarded operands as kernels see them on a device: in place on a CPU, as copies with their canaries on a GPU.
//
//   OnDevice at(context);
//   dispatch(context, [&](const auto& execution) { kernel(execution, {.x = at.matrix(x), .y = at.matrix(y)}); });
//   at.fetch();
//   EXPECT_TRUE(equal(y.values(), ...));
#pragma once

#include <utility>
#include <vector>

#include "tests/support/guarded.h"

#include <fusegrad/autograd/tensor.h>

namespace fusegrad::test {

class OnDevice {
 public:
  explicit OnDevice(const Context& context) : context_(context) {}

  /// Views of operands that outlive this object; the first use of one copies it to the device.
  Matrix matrix(GuardedMatrix& operand);
  Vector vector(GuardedMatrix& operand);
  std::uint8_t* bytes(GuardedBytes& operand);

  /// Waits for the kernels and copies back what they wrote.
  void fetch();

 private:
  void* address(std::span<std::byte> block, void* host);

  Context context_;
  std::vector<std::pair<std::span<std::byte>, Tensor>> copies_;
};

}  // namespace fusegrad::test
