// Runs kernels on the CPU and on a GPU over the same operands: the CPU's results are the oracle for the GPU's.
//
//   BothDevices both;
//   const auto x = both.matrix(Dtype::bf16, values);
//   const auto y = both.matrix(Dtype::bf16, 3, 5);
//   both.run([&](const auto& execution, const auto& at) { kernel(execution, at.matrix(x), at.matrix(y)); });
//   EXPECT_TRUE(both.same(y));
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/guarded.h"
#include "tests/support/on_device.h"

#include <fusegrad/ops/dispatch.h>

namespace fusegrad::test {

class BothDevices {
 public:
  /// A matrix, or bytes, on both devices.
  struct Handle {
    int index = -1;  ///< -1: none
  };

  /// Errors: DeviceError where there is no GPU.
  BothDevices();

  /// Poisoned elements.
  Handle matrix(Dtype dtype, std::int64_t rows, std::int64_t cols, Layout layout = {});
  Handle matrix(Dtype dtype, const Values& values, Layout layout = {});
  Handle bytes(std::int64_t size, std::uint8_t fill);
  Handle bytes(const std::vector<std::uint8_t>& values);

  /// Calls launch(execution, at) for each device; `at` gives the views of that device's operands.
  template <class F>
  void run(F&& launch) {
    for (int device = 0; device < 2; ++device) {
      OnDevice placed(contexts_[device]);
      const At at{operands_[device], placed};
      dispatch(contexts_[device], [&](const auto& execution) { launch(execution, at); });
      placed.fetch();
    }
  }

  GuardedMatrix& cpu(Handle matrix) { return operands_[0].matrix(matrix); }
  GuardedMatrix& gpu(Handle matrix) { return operands_[1].matrix(matrix); }
  GuardedBytes& gpu_bytes(Handle bytes) { return operands_[1].bytes(bytes); }

  /// Success if every element is the same on both devices, and nothing around them was written.
  testing::AssertionResult same(Handle matrix);
  testing::AssertionResult same_bytes(Handle bytes);

 private:
  struct Operands {
    // References to the elements of a deque stay valid.
    std::deque<GuardedMatrix> all_matrices;
    std::deque<GuardedBytes> all_bytes;

    GuardedMatrix& matrix(Handle handle) { return all_matrices[static_cast<std::size_t>(handle.index)]; }
    GuardedBytes& bytes(Handle handle) { return all_bytes[static_cast<std::size_t>(handle.index)]; }
  };

  /// What a launch is given; an absent operand has a null view.
  struct At {
    Operands& operands;
    OnDevice& placed;

    Matrix matrix(Handle handle) const { return handle.index < 0 ? Matrix{} : placed.matrix(operands.matrix(handle)); }
    /// The first row.
    Vector vector(Handle handle) const { return handle.index < 0 ? Vector{} : placed.vector(operands.matrix(handle)); }
    std::uint8_t* bytes(Handle handle) const {
      return handle.index < 0 ? nullptr : placed.bytes(operands.bytes(handle));
    }
  };

  Context contexts_[2];
  Operands operands_[2];
};

}  // namespace fusegrad::test
