// What the tests of plan files on a GPU share: contexts that measure, and files in a folder of their own.
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "tests/io/temporary_directory.h"
#include "tests/support/device.h"

#include <fusegrad/autograd/context.h>

namespace fusegrad::test {

class PlanFileFixture : public testing::Test {
 protected:
  void SetUp() override { skip_without(DeviceType::cuda); }

  static Context measuring(const std::string& cache = {}) {
    return Context::cuda({.plans = PlanPolicy::measure, .plan_cache = cache});
  }

  TemporaryDirectory directory;
  std::string path = directory / "plans.json";
};

}  // namespace fusegrad::test
