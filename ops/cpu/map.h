// Elementwise kernels: y[i] = f(a[i], b[i], ...) over any mix of floating dtypes. Not installed.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/cpu/convert.h>
#include <fusegrad/ops/views.h>

namespace fusegrad::kernels {

/// Elements of one task: its work is well above the price of handing it to a thread.
inline constexpr std::int64_t kChunk = 32768;

constexpr std::int64_t chunk_count(std::int64_t size) { return (size + kChunk - 1) / kChunk; }

/// Calls f(first, count) for every chunk of [0, size), on the pool's threads.
template <class F>
void for_each_chunk(detail::ThreadPool& pool, std::int64_t size, F&& f) {
  pool.run(chunk_count(size), [&](std::int64_t chunk, int) {
    const std::int64_t first = chunk * kChunk;
    f(first, std::min(kChunk, size - first));
  });
}

/// y[i] = f(inputs[0][i], inputs[1][i], ...), computed in Compute and rounded once. Each input has y's size; y may be
/// an input.
template <class Compute, std::size_t N, class F>
void map(const CpuExecution& execution, const std::array<ConstVector, N>& inputs, const Vector& y, F f) {
  for_each_chunk(execution.pool, y.size, [&](std::int64_t first, std::int64_t size) {
    alignas(64) Compute buffers[N + 1][kBlock];
    for (std::int64_t at = first; at < first + size; at += kBlock) {
      const std::int64_t count = std::min(kBlock, first + size - at);
      std::array<const Compute*, N> x;
      for (std::size_t k = 0; k < N; ++k) x[k] = load(inputs[k].data, inputs[k].dtype, at, count, buffers[k]);
      Compute* out = destination(y.data, y.dtype, at, buffers[N]);
      [&]<std::size_t... K>(std::index_sequence<K...>) {
        FUSEGRAD_INDEPENDENT
        for (std::int64_t i = 0; i < count; ++i) out[i] = f(x[K][i]...);
      }
      (std::make_index_sequence<N>());
      store(out, y.data, y.dtype, at, count);
    }
  });
}

}  // namespace fusegrad::kernels
