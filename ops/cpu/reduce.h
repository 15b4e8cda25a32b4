// Sums in fp64 whose order is fixed by the size alone, so that they do not depend on the number of threads.
//
// A block is summed in 16 lanes, block sums pairwise: the error of a sum of n terms grows as log n, at most
// (36 + log2(n / 512)) 2^-53 times the sum of their magnitudes, and the sum is rounded to its dtype once. Not
// installed.
#pragma once

#include <cstdint>

#include <fusegrad/ops/cpu/map.h>

namespace fusegrad::kernels {

/// Adds values pairwise, in the order of a balanced binary tree, as they come.
class PairwiseSum {
 public:
  void add(double value) {
    // Each set bit of the count is one finished subtree on the stack: add the value as a binary counter carries.
    for (std::uint64_t carry = count_++; carry & 1u; carry >>= 1) value += stack_[--height_];
    stack_[height_++] = value;
  }
  double value() const {
    double sum = 0;
    for (int i = height_; i-- > 0;) sum += stack_[i];
    return sum;
  }

 private:
  double stack_[64];
  std::uint64_t count_ = 0;
  int height_ = 0;
};

/// The sum of `count` values, at most kBlock.
template <class T>
double block_sum(const T* values, std::int64_t count) {
  constexpr int kLanes = 16;
  alignas(64) double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += static_cast<double>(values[i + lane]);
  }
  for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += static_cast<double>(values[i]);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

/// The sum over [0, size) of which f(first, count), at most kBlock elements long, gives a part.
template <class F>
double sum_of_blocks(detail::ThreadPool& pool, std::int64_t size, F&& f) {
  const std::int64_t chunks = chunk_count(size);
  auto* sums = static_cast<double*>(pool.shared_scratch(static_cast<std::size_t>(chunks) * sizeof(double)));
  for_each_chunk(pool, size, [&](std::int64_t first, std::int64_t count) {
    PairwiseSum sum;
    for (std::int64_t at = first; at < first + count; at += kBlock)
      sum.add(f(at, std::min(kBlock, first + count - at)));
    sums[first / kChunk] = sum.value();
  });
  PairwiseSum sum;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) sum.add(sums[chunk]);
  return sum.value();
}

}  // namespace fusegrad::kernels
