// What the tests of the tape and of the reverse sweep share: short ways to write tensors down and to read them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <fusegrad/autograd/tape.h>

namespace fusegrad::test {

class TapeFixture : public testing::Test {
 protected:
  Tensor row(std::initializer_list<float> values) const {
    return Tensor::from(context_, {static_cast<std::int64_t>(values.size())}, values);
  }
  static std::vector<float> values(const Tensor& tensor) { return tensor.to_vector<float>(); }
  static Parameter add_parameter(ParameterSet& set, std::string name, std::vector<float> initial) {
    const Shape shape{static_cast<std::int64_t>(initial.size())};
    return set.add(std::move(name), shape,
                   [initial](std::span<float> values) { std::ranges::copy(initial, values.begin()); });
  }

  Context context_ = Context::cpu({.threads = 2});
};

}  // namespace fusegrad::test
