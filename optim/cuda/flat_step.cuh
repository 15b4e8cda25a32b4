// How the GPU walks the slots of flat buffers: in tiles of 128 elements, each of which belongs to one slot at most,
// since that is where slots start. A warp takes a tile at a time, a lane four elements of it. Not installed.
//
// The slots and their scalars travel with the launch, as kernel arguments: no copy, and nothing to wait for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/fault.h>
#include <fusegrad/ops/cuda/access.cuh>
#include <fusegrad/ops/cuda/launch.cuh>
#include <fusegrad/optim/optimizer_kernels.h>

namespace fusegrad::kernels {

inline constexpr int kFlatThreads = 256;
inline constexpr int kLaneElements = 4;
/// Tiles that a warp walks: it looks up the slot of the first.
inline constexpr int kWarpTiles = 4;
static_assert(32 * kLaneElements == kSlotElements);

/// One thread a slot.
inline dim3 slot_grid(std::int64_t slots) {
  return {static_cast<unsigned>((slots + kFlatThreads - 1) / kFlatThreads), 1, 1};
}

/// Slots of one launch, with their scalars. It has to fit into the arguments of a kernel, 32,764 bytes.
template <class Scalars, int kCapacity>
struct SlotList {
  FlatSlot slots[kCapacity];
  Scalars scalars[kCapacity];
  int count;
  std::int64_t first_tile;
  std::int64_t tiles;

  SlotList(std::span<const FlatSlot> given, std::span<const Scalars> given_scalars)
      : count(static_cast<int>(given.size())) {
    std::copy(given.begin(), given.end(), slots);
    std::copy(given_scalars.begin(), given_scalars.end(), scalars);
    first_tile = given.front().offset / kSlotElements;
    tiles = (given.back().offset + given.back().size + kSlotElements - 1) / kSlotElements - first_tile;
  }

  dim3 grid() const {
    constexpr std::int64_t kBlockTiles = std::int64_t{kFlatThreads} / 32 * kWarpTiles;
    return {static_cast<unsigned>((tiles + kBlockTiles - 1) / kBlockTiles), 1, 1};
  }

  /// The last slot that starts at or before `element`; -1 if none does.
  __device__ int find(std::int64_t element) const {
    int low = 0;
    int high = count;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (slots[middle].offset <= element) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low - 1;
  }

  /// Calls f(slot, first, size) for runs of at most kLaneElements elements that are this thread's; together, over all
  /// threads, they are the slots.
  template <class F>
  __device__ void for_each_run(const F& f) const {
    const std::int64_t warp = (std::int64_t{blockIdx.x} * kFlatThreads + threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::int64_t end = min((warp + 1) * kWarpTiles, tiles);
    int slot = find((first_tile + warp * kWarpTiles) * kSlotElements);
    for (std::int64_t tile = warp * kWarpTiles; tile < end; ++tile) {
      const std::int64_t element = (first_tile + tile) * kSlotElements;
      while (slot + 1 < count && slots[slot + 1].offset <= element) ++slot;
      if (slot < 0) continue;
      const std::int64_t first = element + lane * kLaneElements;
      const std::int64_t left = slots[slot].offset + slots[slot].size - first;
      if (left > 0) f(slot, first, static_cast<int>(min(left, std::int64_t{kLaneElements})));
    }
  }
};

/// Calls launch(list, first) with lists of consecutive slots, `first` the index of the list's first. One list, up to
/// 512 slots; a small one for few, because every byte of arguments costs the launch time.
template <class Scalars, class F>
void for_each_list(std::span<const FlatSlot> slots, std::span<const Scalars> scalars, F&& launch) {
  constexpr std::size_t kSmall = 48;
  constexpr std::size_t kLarge = 512;
  if (!slots.empty() && slots.size() <= kSmall) {
    launch(SlotList<Scalars, kSmall>(slots, scalars), std::int64_t{0});
    return;
  }
  for (std::size_t first = 0; first < slots.size(); first += kLarge) {
    const std::size_t count = std::min(kLarge, slots.size() - first);
    const auto own = scalars.empty() ? scalars : scalars.subspan(first, count);
    launch(SlotList<Scalars, kLarge>(slots.subspan(first, count), own), static_cast<std::int64_t>(first));
  }
}

/// Elements that a lane reads or writes in one access (two for f64).
template <class T>
struct alignas(kLaneElements * sizeof(T) < 16 ? kLaneElements * sizeof(T) : 16) Run {
  T elements[kLaneElements];

  /// The first `count` elements from `from` on, others 0. `vectors`: they may be read at once.
  static __device__ Run load(const T* from, int count, bool vectors) {
    if (vectors && count == kLaneElements) return *reinterpret_cast<const Run*>(from);
    Run run = {};
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) {
      if (i < count) run.elements[i] = from[i];
    }
    return run;
  }
  __device__ void store(T* to, int count, bool vectors) const {
    if (vectors && count == kLaneElements) {
      *reinterpret_cast<Run*>(to) = *this;
      return;
    }
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) {
      if (i < count) to[i] = elements[i];
    }
  }
};

/// Rounds new masters to the 16-bit values, if there are any.
template <class T>
__device__ void store_values(const Vector& values, std::int64_t first, const Run<T>& masters, int count, bool vectors) {
  const auto store_as = [&]<class V>() {
    Run<V> rounded;
#pragma unroll
    for (int i = 0; i < kLaneElements; ++i) rounded.elements[i] = convert<V>(masters.elements[i]);
    rounded.store(static_cast<V*>(values.data) + first, count, vectors);
  };
  if (!values.data) return;
  if (values.dtype == Dtype::bf16) {
    store_as.template operator()<bf16>();
  } else {
    store_as.template operator()<f16>();
  }
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

}  // namespace fusegrad::kernels
