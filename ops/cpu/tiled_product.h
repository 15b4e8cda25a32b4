// Matrix products, tile by tile, on all threads: d(i, j) = Σ_p a(i, p) b(p, j). Not installed.
//
// The result is cut into tiles by its shape alone; a tile is one task. A task packs what it needs of a and b as float
// (double for f64), so that 16-bit factors never meet a 16-bit sum, multiplies block by block, and hands each strip of
// finished sums to the epilogue while the strip is in cache. What the epilogue stores is rounded there, once.
//
// Sums are taken over blocks of kDepth terms, each from 0 in order of p, which are added in order. Nothing of that
// depends on threads, on the tile, or on m and n: row i of the result is bit for bit the same whatever other rows there
// are. Only where the depth is split into tasks of their own (weight gradients of narrow layers) does it depend on the
// sizes; the caller then adds the parts in order.
//
// Where oneDNN is allowed and faster (onednn_tile.h), it multiplies: each task has it make a whole tile, which the
// epilogue gets as one strip. The tiles depend on the shape alone there too, and hence the bits not on threads; but how
// oneDNN orders the terms of a sum is its own choice, so that rows may depend on how many there are.
//
// Packing costs each element of a an eighth of a cycle per column tile, and b, read along its columns, half a cycle: so
// b is packed once and shared by all tiles of a column, unless the depth is long, where it would not stay in cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/cpu/thread_pool.h>
#include <fusegrad/autograd/dtype.h>

namespace fusegrad::detail {

/// A factor as it lies in memory: element (row, column) at row * ld + column, or at column * ld + row if transposed.
struct Factor {
  const void* data = nullptr;
  std::int64_t ld = 0;
  Dtype dtype = Dtype::f32;
  bool transposed = false;
};

/// [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
};

struct ProductSize {
  std::int64_t m = 0;      ///< rows of the result
  std::int64_t n = 0;      ///< columns
  std::int64_t depth = 0;  ///< terms of each sum
};

/// Rows of finished sums, to be used up and overwritten.
template <class Acc>
struct Strip {
  Range rows;
  Range cols;
  Acc* sums = nullptr;  ///< (row - rows.begin) * ld + column - cols.begin
  std::int64_t ld = 0;
  Acc* spare = nullptr;   ///< memory for cols.size() elements
  std::int64_t tile = 0;  ///< the tile's index among those of its column of tiles
  bool first = false;     ///< the tile's first strip
  std::int64_t part = 0;  ///< which part of the depth, if that is split
};

/// What is done with the sums.
template <class Acc>
class Epilogue {
 public:
  virtual void apply(const Strip<Acc>& strip) = 0;

 protected:
  ~Epilogue() = default;
};

/// Whether the depth may be cut into parts that are summed by tasks of their own.
enum class SplitDepth : std::uint8_t { no, yes };

template <class Acc>
class TiledProduct {
 public:
  /// `allowed`: onednn has oneDNN multiply floats if that is faster.
  TiledProduct(const Factor& a, const Factor& b, const ProductSize& size, ProductLibrary allowed,
               SplitDepth split = SplitDepth::no);

  /// Which library multiplies.
  ProductLibrary library() const { return library_; }

  std::int64_t row_tiles() const { return row_tiles_; }
  std::int64_t parts() const { return parts_; }
  /// Elements of memory, aligned to 64 bytes, that run() needs in `shared`.
  std::int64_t shared_size() const;
  /// Applies `epilogue` to every strip of the result, each exactly once a part. If the result is empty it does nothing.
  /// `row_sums`, if not null, gets [parts, m] sums of a's rows over the depth; a must be transposed.
  void run(ThreadPool& pool, Acc* shared, Epilogue<Acc>& epilogue, Acc* row_sums = nullptr) const;

 private:
  /// A task's memory.
  struct Memory {
    Acc* a;       // packed rows of a, one depth block
    Acc* b;       // packed columns of b, one depth block, unless b is shared
    Acc* tile;    // sums
    Acc* buffer;  // for conversions
  };

  void choose_tiles();
  void choose_parts();
  std::int64_t tasks() const { return row_tiles_ * col_tiles_ * parts_; }
  std::int64_t work() const { return size_.m * size_.n * size_.depth; }
  Range row_range(std::int64_t tile) const;
  Range col_range(std::int64_t tile) const;
  Range depth_range(std::int64_t block) const;
  Range block_range(std::int64_t part) const;
  bool shares_b() const;
  std::int64_t shared_block_size() const;
  std::int64_t shared_offset(std::int64_t block, Range cols) const;
  std::int64_t packed_a_size() const;
  std::int64_t packed_b_size() const;
  std::int64_t buffer_size() const;
  std::size_t task_bytes() const;
  Memory carve(void* scratch) const;
  void pack_shared_b(ThreadPool& pool, Acc* packed) const;
  void pack_a(Range rows, Range depth, const Memory& memory, Acc* row_sums) const;
  void multiply_strip(Range strip, Range cols, Range depth, const Acc* a, const Acc* b, Acc* sums, bool add) const;
  void run_tile(std::int64_t task, const Memory& memory, const Acc* shared_b, Epilogue<Acc>& epilogue,
                Acc* row_sums) const;
  void run_onednn_tile(std::int64_t task, const Memory& memory, Epilogue<Acc>& epilogue, Acc* row_sums) const;
  void add_rows_of_a(Range rows, Range depth, const Memory& memory, Acc* row_sums) const;
  Range part_depth(std::int64_t part) const;

  Factor a_;
  Factor b_;
  ProductSize size_;
  ProductLibrary library_ = ProductLibrary::eigen;
  std::int64_t tile_rows_ = 0;
  std::int64_t tile_cols_ = 0;
  std::int64_t row_tiles_ = 0;
  std::int64_t col_tiles_ = 0;
  std::int64_t depth_block_ = 0;   // terms a block
  std::int64_t depth_blocks_ = 0;  // at least one: an empty depth is one block of no terms
  std::int64_t parts_ = 1;
};

}  // namespace fusegrad::detail
