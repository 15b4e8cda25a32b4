#include <algorithm>
#include <type_traits>

#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/cpu/onednn_tile.h>
#include <fusegrad/ops/cpu/packing.h>
#include <fusegrad/ops/cpu/scratch.h>
#include <fusegrad/ops/cpu/tasks.h>
#include <fusegrad/ops/cpu/tiled_product.h>

namespace fusegrad::detail {
namespace {

// A tile of 96 x 256 floats, with its 96 rows of a and 256 columns of b over one depth block, takes 450 KiB: half of a
// second-level cache of 1 MiB. 128 columns are 16 bytes of a mask's row, so tiles never share a byte of it. Where there
// are few columns, tiles have more rows instead.
constexpr std::int64_t kColUnit = 128;

struct TileLimits {
  std::int64_t most_rows = 96;
  std::int64_t least_rows = 48;
  std::int64_t most_cols = 256;
  std::int64_t most_narrow_rows = 384;
  // Tiles are made smaller until there are enough for any number of threads, or each would be too small to pay.
  std::int64_t enough_tasks = 32;
  std::int64_t least_work = std::int64_t{1} << 20;
};
constexpr TileLimits kTiles;
// oneDNN packs the factors anew for each tile, so fewer and larger ones. With tiles of twice as many columns products
// of less than a million terms are one task; with half as many rows the narrow ones lose a tenth on one thread.
constexpr TileLimits kOnednnTiles{.most_rows = 192, .most_narrow_rows = 768, .enough_tasks = 16};

constexpr std::int64_t kMostParts = 32;
constexpr std::int64_t kLeastWorkAPart = std::int64_t{1} << 20;
constexpr std::int64_t kLeastBlocksAPart = 2;
// Elements of b, if it is cheap to pack, that stay in cache until the last tile has read them.
constexpr std::int64_t kMostShared = std::int64_t{1} << 20;

}  // namespace

template <class Acc>
TiledProduct<Acc>::TiledProduct(const Factor& a, const Factor& b, const ProductSize& size, ProductLibrary allowed,
                                SplitDepth split)
    : a_(a), b_(b), size_(size) {
  if constexpr (kWithOnednn && std::is_same_v<Acc, float>) {
    if (allowed == ProductLibrary::onednn && onednn_is_faster(a, b, size)) library_ = ProductLibrary::onednn;
  }
  // Blocks of equal size, so that the last is not a short one.
  const std::int64_t least_blocks = std::max<std::int64_t>(1, ceil_div(size.depth, kDepth<Acc>));
  depth_block_ = std::max<std::int64_t>(1, ceil_div(size.depth, least_blocks));
  depth_blocks_ = std::max<std::int64_t>(1, ceil_div(size.depth, depth_block_));
  choose_tiles();
  if (split == SplitDepth::yes) choose_parts();
}

template <class Acc>
void TiledProduct<Acc>::choose_tiles() {
  const TileLimits& limits = library_ == ProductLibrary::onednn ? kOnednnTiles : kTiles;
  tile_cols_ = std::clamp(round_up(size_.n, kColUnit), kColUnit, limits.most_cols);
  tile_rows_ = limits.most_rows;
  if (size_.n <= kColUnit) {
    const std::int64_t columns = round_up(std::max<std::int64_t>(size_.n, 1), kBlockCols<Acc>);
    tile_rows_ = std::min(limits.most_narrow_rows, limits.most_rows * limits.most_cols / columns);
  }
  const auto count = [&] { return ceil_div(size_.m, tile_rows_) * ceil_div(size_.n, tile_cols_); };
  while (count() > 0 && count() < limits.enough_tasks && work() / count() >= 2 * limits.least_work) {
    if (tile_rows_ > limits.least_rows && size_.m > limits.least_rows) {
      tile_rows_ /= 2;
    } else if (tile_cols_ > kColUnit) {
      tile_cols_ = kColUnit;
    } else {
      break;
    }
  }
  row_tiles_ = ceil_div(size_.m, tile_rows_);
  if (row_tiles_ > 1) tile_rows_ = ceil_div(size_.m, row_tiles_);  // of equal size
  tile_rows_ = round_up(std::min(tile_rows_, std::max<std::int64_t>(1, size_.m)), kBlockRows);
  row_tiles_ = ceil_div(size_.m, tile_rows_);
  col_tiles_ = ceil_div(size_.n, tile_cols_);
}

template <class Acc>
void TiledProduct<Acc>::choose_parts() {
  if (tasks() == 0) return;
  const std::int64_t most =
      std::min({kMostParts / tasks(), work() / kLeastWorkAPart, depth_blocks_ / kLeastBlocksAPart});
  if (most > 1) parts_ = ceil_div(depth_blocks_, ceil_div(depth_blocks_, most));
}

template <class Acc>
Range TiledProduct<Acc>::row_range(std::int64_t tile) const {
  return {tile * tile_rows_, std::min((tile + 1) * tile_rows_, size_.m)};
}
template <class Acc>
Range TiledProduct<Acc>::col_range(std::int64_t tile) const {
  return {tile * tile_cols_, std::min((tile + 1) * tile_cols_, size_.n)};
}
template <class Acc>
Range TiledProduct<Acc>::depth_range(std::int64_t block) const {
  return {block * depth_block_, std::min((block + 1) * depth_block_, size_.depth)};
}
template <class Acc>
Range TiledProduct<Acc>::block_range(std::int64_t part) const {
  const std::int64_t blocks = ceil_div(depth_blocks_, parts_);
  return {part * blocks, std::min((part + 1) * blocks, depth_blocks_)};
}
template <class Acc>
Range TiledProduct<Acc>::part_depth(std::int64_t part) const {
  const Range blocks = block_range(part);
  return {depth_range(blocks.begin).begin, depth_range(blocks.end - 1).end};
}

template <class Acc>
bool TiledProduct<Acc>::shares_b() const {
  return library_ == ProductLibrary::eigen && row_tiles_ > 1 && (b_.transposed || size_.n * size_.depth <= kMostShared);
}

template <class Acc>
std::int64_t TiledProduct<Acc>::shared_block_size() const {
  return ceil_div(size_.n, kBlockCols<Acc>) * b_panel_size<Acc>(depth_block_);
}

template <class Acc>
std::int64_t TiledProduct<Acc>::shared_size() const {
  return shares_b() ? depth_blocks_ * shared_block_size() : 0;
}

/// Where these columns of one depth block start in the shared copy of b.
template <class Acc>
std::int64_t TiledProduct<Acc>::shared_offset(std::int64_t block, Range cols) const {
  return block * shared_block_size() + cols.begin / kBlockCols<Acc> * b_panel_size<Acc>(depth_range(block).size());
}

template <class Acc>
std::int64_t TiledProduct<Acc>::buffer_size() const {
  if constexpr (kWithOnednn) {
    if (library_ == ProductLibrary::onednn)
      return std::max({tile_cols_, tile_rows_, onednn_buffer_size(a_, tile_rows_, tile_cols_)});
  }
  return std::max({tile_cols_, tile_rows_, kTransposeBuffer<Acc>});
}

template <class Acc>
std::int64_t TiledProduct<Acc>::packed_a_size() const {
  if (library_ == ProductLibrary::onednn) return 0;
  return a_.transposed ? tile_rows_ / kBlockRows * a_panel_size<Acc>(depth_block_) : tile_rows_ * kRowStride<Acc>;
}

template <class Acc>
std::int64_t TiledProduct<Acc>::packed_b_size() const {
  return shares_b() || library_ == ProductLibrary::onednn
             ? 0
             : ceil_div(tile_cols_, kBlockCols<Acc>) * b_panel_size<Acc>(depth_block_);
}

template <class Acc>
std::size_t TiledProduct<Acc>::task_bytes() const {
  return scratch_bytes<Acc>(packed_a_size(), packed_b_size(), tile_rows_ * tile_cols_, buffer_size());
}

template <class Acc>
void TiledProduct<Acc>::pack_shared_b(ThreadPool& pool, Acc* packed) const {
  constexpr std::int64_t kWorkAnElement = 8;
  run_tasks(pool, col_tiles_ * depth_blocks_, size_.n * size_.depth * kWorkAnElement,
            [&](std::int64_t task, int worker) {
              const Range cols = col_range(task % col_tiles_);
              const std::int64_t block = task / col_tiles_;
              auto* buffer = static_cast<Acc*>(pool.scratch(worker, scratch_bytes<Acc>(buffer_size())));
              pack_b(b_, cols, depth_range(block), packed + shared_offset(block, cols), buffer);
            });
}

template <class Acc>
auto TiledProduct<Acc>::carve(void* scratch) const -> Memory {
  Scratch memory(scratch);
  Memory carved{};
  carved.a = memory.take<Acc>(packed_a_size());
  carved.b = memory.take<Acc>(packed_b_size());
  carved.tile = memory.take<Acc>(tile_rows_ * tile_cols_);
  carved.buffer = memory.take<Acc>(buffer_size());
  return carved;
}

template <class Acc>
void TiledProduct<Acc>::run(ThreadPool& pool, Acc* shared, Epilogue<Acc>& epilogue, Acc* row_sums) const {
  if (shares_b()) pack_shared_b(pool, shared);
  run_tasks(pool, tasks(), work(), [&](std::int64_t task, int worker) {
    const Memory memory = carve(pool.scratch(worker, task_bytes()));
    if constexpr (kWithOnednn && std::is_same_v<Acc, float>) {
      if (library_ == ProductLibrary::onednn) return run_onednn_tile(task, memory, epilogue, row_sums);
    }
    run_tile(task, memory, shared, epilogue, row_sums);
  });
}

template <class Acc>
void TiledProduct<Acc>::pack_a(Range rows, Range depth, const Memory& memory, Acc* row_sums) const {
  if (a_.transposed) {
    pack_columns(a_, rows, depth, memory.a, memory.buffer);
    if (row_sums) add_packed_rows(memory.a, rows.size(), depth.size(), row_sums);
  } else {
    pack_rows(a_, rows, depth, memory.a);
  }
}

/// sums = (or +=) the products of a strip of packed a and all panels of packed b, over one depth block.
template <class Acc>
void TiledProduct<Acc>::multiply_strip(Range strip, Range cols, Range depth, const Acc* a, const Acc* b, Acc* sums,
                                       bool add) const {
  const auto kernel_for = a_.transposed ? block_kernel<Acc, PackedBy::depth> : block_kernel<Acc, PackedBy::row>;
  for (std::int64_t j = 0; j < cols.size(); j += kBlockCols<Acc>, b += b_panel_size<Acc>(depth.size())) {
    const auto kernel = kernel_for(strip.size(), panel_registers<Acc>(cols.size() - j));
    kernel(depth.size(), a, b, sums + j, tile_cols_, add);
  }
}

template <class Acc>
void TiledProduct<Acc>::run_tile(std::int64_t task, const Memory& memory, const Acc* shared_b, Epilogue<Acc>& epilogue,
                                 Acc* row_sums) const {
  const std::int64_t part = task % parts_;
  const std::int64_t col_tile = task / parts_ % col_tiles_;
  const std::int64_t row_tile = task / parts_ / col_tiles_;
  const Range blocks = block_range(part);
  const Range cols = col_range(col_tile);
  const Range rows = row_range(row_tile);
  // With a single block the sums of a strip are used up at once: every strip takes the same memory, still in cache.
  const std::int64_t strip_stride = blocks.size() == 1 ? 0 : tile_cols_;
  Acc* sums_of_rows = nullptr;
  if (row_sums && col_tile == 0) {
    sums_of_rows = row_sums + part * size_.m + rows.begin;
    std::fill_n(sums_of_rows, rows.size(), Acc{0});
  }

  for (std::int64_t block = blocks.begin; block < blocks.end; ++block) {
    const Range depth = depth_range(block);
    pack_a(rows, depth, memory, sums_of_rows);
    if (!shares_b()) pack_b(b_, cols, depth, memory.b, memory.buffer);
    const Acc* b = shares_b() ? shared_b + shared_offset(block, cols) : memory.b;
    for (std::int64_t i = 0; i < rows.size(); i += kBlockRows) {
      const Range strip{rows.begin + i, std::min(rows.begin + i + kBlockRows, rows.end)};
      const Acc* a =
          memory.a + (a_.transposed ? i / kBlockRows * a_panel_size<Acc>(depth.size()) : i * kRowStride<Acc>);
      Acc* sums = memory.tile + i * strip_stride;
      multiply_strip(strip, cols, depth, a, b, sums, block != blocks.begin);
      if (block + 1 != blocks.end) continue;
      epilogue.apply({.rows = strip,
                      .cols = cols,
                      .sums = sums,
                      .ld = tile_cols_,
                      .spare = memory.buffer,
                      .tile = row_tile,
                      .first = i == 0,
                      .part = part});
    }
  }
}

/// row_sums[i] += Σ_p a(i, p) over `depth`, block by block; a lies transposed.
template <class Acc>
void TiledProduct<Acc>::add_rows_of_a(Range rows, Range depth, const Memory& memory, Acc* row_sums) const {
  Acc* block = memory.tile;  // not yet in use
  for (std::int64_t begin = depth.begin; begin < depth.end; begin += kDepth<Acc>) {
    std::fill_n(block, rows.size(), Acc{0});
    for (std::int64_t p = begin; p < std::min<std::int64_t>(begin + kDepth<Acc>, depth.end); ++p) {
      const Acc* row = kernels::load(a_.data, a_.dtype, p * a_.ld + rows.begin, rows.size(), memory.buffer);
      for (std::int64_t i = 0; i < rows.size(); ++i) block[i] += row[i];
    }
    for (std::int64_t i = 0; i < rows.size(); ++i) row_sums[i] += block[i];
  }
}

template <class Acc>
void TiledProduct<Acc>::run_onednn_tile(std::int64_t task, const Memory& memory, Epilogue<Acc>& epilogue,
                                        Acc* row_sums) const {
  if constexpr (kWithOnednn && std::is_same_v<Acc, float>) {
    const std::int64_t part = task % parts_;
    const std::int64_t col_tile = task / parts_ % col_tiles_;
    const std::int64_t row_tile = task / parts_ / col_tiles_;
    const Range rows = row_range(row_tile);
    const Range cols = col_range(col_tile);
    const Range depth = part_depth(part);
    if (row_sums && col_tile == 0) {
      Acc* sums = row_sums + part * size_.m + rows.begin;
      std::fill_n(sums, rows.size(), Acc{0});
      add_rows_of_a(rows, depth, memory, sums);
    }
    multiply_tile_by_onednn(a_, b_, rows, cols, depth, memory.tile, tile_cols_, memory.buffer);
    epilogue.apply({.rows = rows,
                    .cols = cols,
                    .sums = memory.tile,
                    .ld = tile_cols_,
                    .spare = memory.buffer,
                    .tile = row_tile,
                    .first = true,
                    .part = part});
  }
}

template class TiledProduct<float>;
template class TiledProduct<double>;

}  // namespace fusegrad::detail
