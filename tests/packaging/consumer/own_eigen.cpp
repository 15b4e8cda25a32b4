#include "own_eigen.h"

#include <Eigen/Dense>

std::vector<float> product_by_own_eigen(const fusegrad::Tensor& x, const fusegrad::Tensor& w) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const auto view = [](const fusegrad::Tensor& tensor) {
    return Eigen::Map<const Matrix>(tensor.data<float>().data(), tensor.shape()[0], tensor.shape()[1]);
  };
  const Matrix y = view(x) * view(w).transpose();
  return {y.data(), y.data() + y.size()};
}
