// Gives parameters gradients without a backward, and bounds the error of the steps they lead to.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/dtypes.h"
#include "tests/support/tolerance.h"

#include <fusegrad/autograd/parameter_store.h>
#include <fusegrad/autograd/random.h>

namespace fusegrad::test {

/// The elements of a floating-point tensor, widened.
inline std::vector<double> elements_of(const Tensor& tensor) { return tensor.to(Dtype::f64).to_vector<double>(); }

/// An initializer that gives these values.
inline Initializer starting_at(const std::vector<double>& values) {
  return [values](std::span<float> out) {
    ASSERT_EQ(values.size(), out.size());
    std::ranges::transform(values, out.begin(), [](double value) { return static_cast<float>(value); });
  };
}

/// Makes the gradient of `parameter` valid, as a backward with `loss_scale` would; the values include the scale.
inline void give_gradient(const Parameter& parameter, const std::vector<double>& values, double loss_scale = 1) {
  parameter.store().lay_out();
  detail::ParameterSlot& slot = parameter.store().slot(parameter.index());
  slot.gradient.copy_from(Tensor::from(parameter.context(), slot.shape, values).to(slot.gradient.dtype()));
  slot.gradient_valid = true;
  slot.gradient_scale = loss_scale;
}

/// Writes NaN over the memory of a gradient: a step that reads it although it is empty shows.
inline void poison_gradient(const Parameter& parameter) {
  parameter.store().lay_out();
  Tensor& gradient = parameter.store().slot(parameter.index()).gradient;
  gradient.copy_from(
      Tensor::full(gradient.context(), gradient.shape(), gradient.dtype(), std::numeric_limits<double>::quiet_NaN()));
}

/// `count` values in [-1, 1), exact in float; another draw for every (seed, stream).
inline std::vector<double> random_values(std::int64_t count, std::uint64_t seed, std::uint64_t stream) {
  const Random random(seed, stream);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 2 * double{random.uniform(i)} - 1;
  return values;
}

/// A set with one parameter "p" of one element.
inline ParameterSet one_value(Dtype dtype, double initial, const Context& context = Context::cpu({.threads = 1})) {
  ParameterSet set(context, dtype);
  set.add("p", {1}, starting_at({initial}));
  return set;
}

/// The value of a one-element parameter, before it is rounded to 16 bits.
inline double master_of(const Parameter& parameter) { return parameter.master().item(); }

/// Bound on the error of a master of a set of `dtype` after `steps` steps of at most `update`, with |p| <= `value`.
inline double steps_bound(Dtype dtype, int steps, double update, double value) {
  return steps * optimizer_step(update, value, accumulation_dtype(dtype));
}

/// Asserts that every 16-bit value is its master, rounded.
inline void expect_values_are_rounded_masters(const ParameterSet& set) {
  for (const Parameter& parameter : set) {
    ASSERT_EQ(elements_of(parameter.value()), elements_of(parameter.master().to(set.dtype()))) << parameter.name();
  }
}

}  // namespace fusegrad::test
