#include "tests/support/device.h"

#include <fusegrad/autograd/error.h>

namespace fusegrad::test {

bool has_gpu() {
  static const bool found = [] {
    try {
      Context::cuda({.threads = 1});
      return true;
    } catch (const DeviceError&) {
      return false;
    }
  }();
  return found;
}

Context context_on(DeviceType device, const ContextOptions& options) {
  return device == DeviceType::cpu ? Context::cpu(options) : Context::cuda(options);
}

void skip_without(DeviceType device) {
  if (device == DeviceType::cuda && !has_gpu()) GTEST_SKIP() << "this machine or build has no GPU";
}

std::string to_string(DeviceType device) { return device == DeviceType::cpu ? "cpu" : "cuda"; }

}  // namespace fusegrad::test
