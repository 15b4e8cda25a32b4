// The operands of an elementwise function. Not installed.
#pragma once

#include <algorithm>

#include <fusegrad/ops/cuda/access.cuh>
#include <fusegrad/ops/views.h>

namespace fusegrad::kernels {

/// K vectors of one length.
template <int K>
struct Operands {
  static constexpr int kLength = K > 0 ? K : 1;  // an array cannot be empty
  ConstVector vectors[kLength] = {};

  /// Packets of each operand that a thread has in flight, so that there are enough bytes under way to hide the latency
  /// of the memory, and registers left.
  static constexpr int kInFlight = K < 2 ? 4 : 2;

  /// True if 16-byte accesses may be used.
  bool aligned() const {
    return std::all_of(vectors, vectors + K, [](const ConstVector& x) { return kernels::aligned(x.data); });
  }
  bool all_of(Dtype dtype) const {
    return std::all_of(vectors, vectors + K, [=](const ConstVector& x) { return x.dtype == dtype; });
  }
  bool any_of(Dtype dtype) const {
    return std::any_of(vectors, vectors + K, [=](const ConstVector& x) { return x.dtype == dtype; });
  }
};

}  // namespace fusegrad::kernels
