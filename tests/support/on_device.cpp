#include "tests/support/on_device.h"

#include <algorithm>
#include <cstring>

namespace fusegrad::test {

Matrix OnDevice::matrix(GuardedMatrix& operand) {
  Matrix view = operand.matrix();
  view.data = address(operand.block(), view.data);
  return view;
}

Vector OnDevice::vector(GuardedMatrix& operand) {
  Vector view = operand.vector();
  view.data = address(operand.block(), view.data);
  return view;
}

std::uint8_t* OnDevice::bytes(GuardedBytes& operand) {
  return static_cast<std::uint8_t*>(address(operand.block(), operand.data()));
}

void* OnDevice::address(std::span<std::byte> block, void* host) {
  if (context_.device().type == DeviceType::cpu) return host;
  auto copy = std::ranges::find(copies_, block.data(), [](const auto& entry) { return entry.first.data(); });
  if (copy == copies_.end()) {
    const std::span bytes(reinterpret_cast<const std::uint8_t*>(block.data()), block.size());
    copies_.emplace_back(block, Tensor::from(context_, {static_cast<std::int64_t>(block.size())}, bytes));
    copy = copies_.end() - 1;
  }
  return static_cast<std::byte*>(copy->second.mutable_raw()) + (static_cast<std::byte*>(host) - block.data());
}

void OnDevice::fetch() {
  context_.synchronize();
  for (const auto& [block, copy] : copies_) {
    const std::vector<std::uint8_t> bytes = copy.to_vector<std::uint8_t>();
    std::memcpy(block.data(), bytes.data(), bytes.size());
  }
  copies_.clear();
}

}  // namespace fusegrad::test
