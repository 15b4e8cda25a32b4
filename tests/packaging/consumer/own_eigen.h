#pragma once

#include <vector>

#include <fusegrad/fusegrad.h>

/// x wᵀ by the program's own Eigen; x [rows, inner], w [cols, inner], both f32.
std::vector<float> product_by_own_eigen(const fusegrad::Tensor& x, const fusegrad::Tensor& w);
