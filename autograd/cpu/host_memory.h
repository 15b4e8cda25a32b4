// The CPU as a Backend: aligned host memory. Not installed.
#pragma once

#include <memory>

#include <fusegrad/autograd/backend.h>

namespace fusegrad::detail {

std::unique_ptr<Backend> make_cpu_backend();

}  // namespace fusegrad::detail
