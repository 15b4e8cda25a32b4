// Tensors from and to plain lists of doubles, for tests.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include <fusegrad/autograd/parameter.h>
#include <fusegrad/autograd/parameter_store.h>
#include <fusegrad/autograd/tensor.h>

namespace fusegrad {

/// `values` rounded to `dtype`.
inline Tensor make_tensor(const Context& context, const Shape& shape, const std::vector<double>& values, Dtype dtype) {
  return Tensor::from(context, shape, values).to(dtype);
}

/// The elements of a floating-point tensor, widened.
inline std::vector<double> values_of(const Tensor& tensor) { return tensor.to(Dtype::f64).to_vector<double>(); }

inline std::vector<double> scaled(std::vector<double> values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}

/// Row-major n x n identity.
inline std::vector<double> identity(int n) {
  std::vector<double> values(static_cast<std::size_t>(n) * static_cast<std::size_t>(n), 0.0);
  for (int i = 0; i < n; ++i) values[static_cast<std::size_t>(i) * static_cast<std::size_t>(n + 1)] = 1;
  return values;
}

/// An initializer that gives these values.
inline Initializer fill_with(const std::vector<double>& values) {
  return [values](std::span<float> out) {
    std::ranges::transform(values, out.begin(), [](double v) { return static_cast<float>(v); });
  };
}

/// Fills a parameter's gradient memory with NaN, so that an element that backward leaves out shows.
inline void poison_gradient(const Parameter& parameter) {
  parameter.store().lay_out();
  Tensor& gradient = parameter.store().slot(parameter.index()).gradient;
  gradient.copy_from(
      Tensor::full(gradient.context(), gradient.shape(), gradient.dtype(), std::numeric_limits<double>::quiet_NaN()));
}

}  // namespace fusegrad
