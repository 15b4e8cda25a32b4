#include "tests/support/both_devices.h"

#include <algorithm>

#include <fmt/format.h>

namespace fusegrad::test {
namespace {

/// One for all: making a context takes longer than most tests.
const Context& shared_gpu() {
  static const Context& gpu = *new Context(Context::cuda());  // outlives the CUDA runtime's own clean-up
  return gpu;
}

}  // namespace

BothDevices::BothDevices() : contexts_{Context::cpu({.threads = 1}), shared_gpu()} {}

// Each side is made anew, not copied: a copy of a guarded block need not be aligned as the block is.

BothDevices::Handle BothDevices::matrix(Dtype dtype, std::int64_t rows, std::int64_t cols, Layout layout) {
  for (Operands& side : operands_) side.all_matrices.emplace_back(dtype, rows, cols, layout);
  return {static_cast<int>(operands_[0].all_matrices.size()) - 1};
}

BothDevices::Handle BothDevices::matrix(Dtype dtype, const Values& values, Layout layout) {
  for (Operands& side : operands_) side.all_matrices.emplace_back(dtype, values, layout);
  return {static_cast<int>(operands_[0].all_matrices.size()) - 1};
}

BothDevices::Handle BothDevices::bytes(std::int64_t size, std::uint8_t fill) {
  for (Operands& side : operands_) side.all_bytes.emplace_back(size, fill);
  return {static_cast<int>(operands_[0].all_bytes.size()) - 1};
}

BothDevices::Handle BothDevices::bytes(const std::vector<std::uint8_t>& values) {
  const Handle handle = bytes(static_cast<std::int64_t>(values.size()), 0);
  for (Operands& side : operands_) std::ranges::copy(values, side.bytes(handle).data());
  return handle;
}

testing::AssertionResult BothDevices::same(Handle matrix) {
  if (auto result = gpu(matrix).intact(); !result) return result;
  const Values want = cpu(matrix).values();
  const Values got = gpu(matrix).values();
  for (std::int64_t i = 0; i < want.rows; ++i) {
    for (std::int64_t j = 0; j < want.cols; ++j) {
      const double a = want.at(i, j);
      const double b = got.at(i, j);
      if (a == b || (a != a && b != b)) continue;
      return testing::AssertionFailure() << fmt::format("({}, {}) is {} on the CPU, {} on the GPU", i, j, a, b);
    }
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult BothDevices::same_bytes(Handle bytes) {
  if (auto result = gpu_bytes(bytes).intact(); !result) return result;
  const std::vector<std::uint8_t> want = operands_[0].bytes(bytes).copy();
  const std::vector<std::uint8_t> got = gpu_bytes(bytes).copy();
  const auto [a, b] = std::ranges::mismatch(want, got);
  if (a == want.end()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << fmt::format("byte {} is {:#x} on the CPU, {:#x} on the GPU", a - want.begin(),
                                                    *a, *b);
}

}  // namespace fusegrad::test
