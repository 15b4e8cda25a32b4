// fp64 matrices for tests: what operands hold and what the truth is computed in.
//
// Every operand of a test is made as Values on its dtype's grid, so that storing it is exact and the fp64 product of
// the Values is the truth for every dtype.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include <fusegrad/autograd/dtype.h>
#include <fusegrad/autograd/tensor.h>

namespace fusegrad::test {

/// Row-major fp64 matrix; zeros unless given.
struct Values {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> elements;

  Values() = default;
  Values(std::int64_t rows, std::int64_t cols)
      : rows(rows), cols(cols), elements(static_cast<std::size_t>(rows * cols)) {}
  Values(std::int64_t rows, std::int64_t cols, std::initializer_list<double> row_major)
      : rows(rows), cols(cols), elements(row_major) {}

  std::int64_t size() const { return rows * cols; }
  double& at(std::int64_t i, std::int64_t j) { return elements[static_cast<std::size_t>(i * cols + j)]; }
  double at(std::int64_t i, std::int64_t j) const { return elements[static_cast<std::size_t>(i * cols + j)]; }

  /// f(element) for every element.
  template <class F>
  Values map(F&& f) const {
    Values result = *this;
    for (double& value : result.elements) value = f(value);
    return result;
  }
  /// f(element, other's element) for every element; the sizes are equal.
  template <class F>
  Values zip(const Values& other, F&& f) const {
    Values result = *this;
    for (std::size_t i = 0; i < elements.size(); ++i) result.elements[i] = f(elements[i], other.elements[i]);
    return result;
  }
};

/// `value` rounded once to the grid of `dtype`, to nearest even.
double on_grid(double value, Dtype dtype);
Values on_grid(const Values& values, Dtype dtype);

Values transposed(const Values& a);
Values absolute(const Values& a);
Values sum(const Values& a, const Values& b);
/// a with row vector b [1, cols] added to every row.
Values plus_row(const Values& a, const Values& b);
/// [1, cols].
Values column_sums(const Values& a);

/// a b in fp64; a [m, k], b [k, n]. Exact where every partial sum is.
Values product(const Values& a, const Values& b);

/// A tensor's elements as a matrix whose columns are the last axis.
Values values_of(const Tensor& tensor);
/// A tensor of `shape` that holds the values, each rounded to `dtype`.
Tensor tensor_of(const Context& context, const Shape& shape, Dtype dtype, const Values& values);
/// As above, with the shape [rows, cols].
Tensor tensor_of(const Context& context, Dtype dtype, const Values& values);

}  // namespace fusegrad::test
