// How the CPU walks the slots of flat buffers: fixed chunks of the flat range, so that a thousand small parameters are
// as few tasks as one large one, and the cut does not depend on the number of threads. Not installed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include <fusegrad/ops/cpu/convert.h>
#include <fusegrad/optim/optimizer_kernels.h>

namespace fusegrad::kernels {

/// Elements of a task: enough to outweigh handing it to a thread, few enough to share a small network among threads.
inline constexpr std::int64_t kFlatChunk = 16384;

/// Calls piece(slot, begin, end), in parallel, for pieces [begin, end) of the flat range that together are the slots;
/// each lies within slot number `slot`.
template <class F>
void for_each_piece(const CpuExecution& execution, std::span<const FlatSlot> slots, const F& piece) {
  if (slots.empty()) return;
  const std::int64_t first = slots.front().offset / kFlatChunk;
  const std::int64_t end = slots.back().offset + slots.back().size;
  execution.pool.run((end + kFlatChunk - 1) / kFlatChunk - first, [&](std::int64_t task, int /*worker*/) {
    const std::int64_t chunk_begin = (first + task) * kFlatChunk;
    const std::int64_t chunk_end = chunk_begin + kFlatChunk;
    const auto ends_before = [](std::int64_t at, const FlatSlot& slot) { return at < slot.offset + slot.size; };
    auto slot = std::upper_bound(slots.begin(), slots.end(), chunk_begin, ends_before);
    for (; slot != slots.end() && slot->offset < chunk_end; ++slot) {
      const std::int64_t piece_begin = std::max(slot->offset, chunk_begin);
      const std::int64_t piece_end = std::min(slot->offset + slot->size, chunk_end);
      if (piece_begin < piece_end) piece(slot - slots.begin(), piece_begin, piece_end);
    }
  });
}

/// The element type of a step's arithmetic, called as f.template operator()<T>().
template <class F>
void visit_master(Dtype dtype, const F& f) {
  if (dtype == Dtype::f64) {
    f.template operator()<double>();
  } else {
    f.template operator()<float>();
  }
}

/// Calls update(begin, end) for blocks of [begin, end) and rounds the masters of each, while they are in the
/// first-level cache, to the values, if there are any.
template <class T, class F>
void update_and_round(const FlatParameters& parameters, std::int64_t begin, std::int64_t end, const F& update) {
  const Vector& values = parameters.values;
  if (!values.data) return update(begin, end);
  const T* masters = static_cast<const T*>(parameters.masters.data);
  for (std::int64_t from = begin; from < end; from += kBlock) {
    const std::int64_t to = std::min(from + kBlock, end);
    update(from, to);
    store(masters + from, values.data, values.dtype, from, to - from);
  }
}

}  // namespace fusegrad::kernels
