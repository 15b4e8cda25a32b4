#include "tests/support/values.h"

#include <algorithm>
#include <cmath>

#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/autograd/narrow.h>
#include <fusegrad/ops/views.h>

namespace fusegrad::test {

double on_grid(double value, Dtype dtype) {
  return detail::visit_floating(dtype, [&]<class T>() { return static_cast<double>(detail::narrow<T>(value)); });
}

Values on_grid(const Values& values, Dtype dtype) {
  return values.map([&](double value) { return on_grid(value, dtype); });
}

Values transposed(const Values& a) {
  Values result(a.cols, a.rows);
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < a.cols; ++j) result.at(j, i) = a.at(i, j);
  return result;
}

Values absolute(const Values& a) {
  return a.map([](double value) { return std::fabs(value); });
}

Values sum(const Values& a, const Values& b) {
  return a.zip(b, [](double x, double y) { return x + y; });
}

Values plus_row(const Values& a, const Values& b) {
  Values result = a;
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < a.cols; ++j) result.at(i, j) += b.at(0, j);
  return result;
}

Values column_sums(const Values& a) {
  Values result(1, a.cols);
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < a.cols; ++j) result.at(0, j) += a.at(i, j);
  return result;
}

Values product(const Values& a, const Values& b) {
  // Row by row of b, so that the inner loop runs along memory; k in blocks that keep b's rows in cache.
  constexpr std::int64_t kBlock = 64;
  Values result(a.rows, b.cols);
  for (std::int64_t begin = 0; begin < a.cols; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, a.cols);
    for (std::int64_t i = 0; i < a.rows; ++i) {
      double* row = result.elements.data() + i * b.cols;
      for (std::int64_t k = begin; k < end; ++k) {
        const double factor = a.at(i, k);
        const double* other = b.elements.data() + k * b.cols;
        for (std::int64_t j = 0; j < b.cols; ++j) row[j] += factor * other[j];
      }
    }
  }
  return result;
}

Values values_of(const Tensor& tensor) {
  const ConstMatrix view = matrix_of(tensor);
  Values result(view.rows, view.cols);
  detail::visit_any(tensor.dtype(), [&]<class T>() {
    const std::vector<T> elements = tensor.to_vector<T>();
    std::transform(elements.begin(), elements.end(), result.elements.begin(),
                   [](T element) { return static_cast<double>(element); });
  });
  return result;
}

Tensor tensor_of(const Context& context, const Shape& shape, Dtype dtype, const Values& values) {
  return detail::visit_floating(dtype, [&]<class T>() {
    std::vector<T> elements(values.elements.size());
    std::transform(values.elements.begin(), values.elements.end(), elements.begin(), detail::narrow<T>);
    return Tensor::from(context, shape, elements);
  });
}

Tensor tensor_of(const Context& context, Dtype dtype, const Values& values) {
  return tensor_of(context, {values.rows, values.cols}, dtype, values);
}

}  // namespace fusegrad::test
