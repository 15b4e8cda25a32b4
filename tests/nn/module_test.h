// What the tests of modules share.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/dtypes.h"

#include <fusegrad/autograd/parameter.h>
#include <fusegrad/autograd/random.h>

namespace fusegrad::test {

/// The elements of a floating-point tensor, widened.
inline std::vector<double> elements_of(const Tensor& tensor) { return tensor.to(Dtype::f64).to_vector<double>(); }

inline Tensor make_tensor_of(const Context& context, const Shape& shape, Dtype dtype,
                             const std::vector<double>& values) {
  return Tensor::from(context, shape, values).to(dtype);
}

/// Values in [-1, 1); another draw for every seed.
inline Tensor random_tensor(const Context& context, const Shape& shape, Dtype dtype, std::uint64_t seed) {
  const Random random(seed, 0);
  std::vector<double> values(static_cast<std::size_t>(shape.size()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 2 * double{random.uniform(i)} - 1;
  return make_tensor_of(context, shape, dtype, values);
}

inline std::vector<std::string> names_of(const ParameterSet& set) {
  std::vector<std::string> names;
  for (const Parameter& parameter : set) names.push_back(parameter.name());
  return names;
}

}  // namespace fusegrad::test
