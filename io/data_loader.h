// Batches of a dataset, in a new order every epoch:
//
//   fusegrad::DataLoader batches(context, digits, {.batch_size = 64, .shuffle_seed = 1});
//   for (int epoch = 0; epoch < 30; ++epoch)
//     for (auto [x, label] : batches) { ... }
//
// On a GPU the loader copies ahead: while a step runs on one batch, the next one is gathered into page-locked memory
// and copied on a stream of its own. What a program has on the GPU already needs no loader: a tensor there, made by ops
// or borrowed, is an input of a tape and a label or target of a loss as it is.
//
// The order of an epoch is a pure function of the seed and the epoch's number: the same on every device, with any
// number of threads, and after a resume with set_epoch().
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/tensor.h>
#include <fusegrad/io/dataset.h>

namespace fusegrad {

namespace detail {
struct BatchAhead;
}

struct DataLoaderOptions {
  /// Rows in a batch, at least 1. May exceed the dataset: then there is one batch.
  std::int64_t batch_size = 1;
  /// Set: every epoch shuffles the rows. Unset: they come in the dataset's order.
  std::optional<std::uint64_t> shuffle_seed = std::nullopt;
  /// Leaves out a last batch that is not full; otherwise it comes as it is, with fewer rows.
  bool drop_last = false;
  /// Type of x: f64, f32, bf16 or f16; each feature is rounded to it once.
  Dtype dtype = Dtype::f32;
};

/// Some rows of a dataset, on the loader's context.
struct Batch {
  Tensor x;      ///< [batch, features], in the loader's dtype
  Tensor label;  ///< classes: i32 [batch]; regression targets: [batch, t], f64 for an f64 loader, else f32
};

/// Cuts a dataset into batches. A batch belongs to whoever holds it: the loader never writes to it again. Its memory
/// comes from the context's cache, so that after the first epoch iterating allocates nothing. On a GPU a batch is ready
/// in the order of the context's stream, and the loader holds, beside the batch in use, one more on the device (none if
/// there is no memory for it) and two in page-locked memory. A loader may be left in the middle of an epoch and
/// destroyed at any time; any number of them share a context.
class DataLoader {
 public:
  class Iterator;

  /// Keeps the dataset alive. Errors: ValueError if batch_size is less than 1, if drop_last leaves no batch, if the
  /// dataset has 2^32 rows or more, or, with row and value, for a number that `dtype` cannot hold (f16 ends at 65504);
  /// DtypeError unless `dtype` is floating-point; OutOfMemoryError; CudaError.
  DataLoader(const Context& context, const Dataset& dataset, const DataLoaderOptions& options = {});
  ~DataLoader();
  /// `other` then has no batches: to ask it or an iterator of it for one is a StateError.
  DataLoader(DataLoader&& other) noexcept;
  DataLoader& operator=(DataLoader&& other) noexcept;

  /// Starts epoch number epoch() and counts it. Iterators of earlier epochs are then invalid. Errors: StateError after
  /// epoch 2^32 - 1, or if the loader was moved from; CudaError.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

  /// Batches in an epoch.
  std::int64_t size() const;
  /// Number of the epoch that the next begin() starts, from 0.
  std::int64_t epoch() const { return epoch_; }
  /// Continues with this epoch. Errors: ValueError if it is not in [0, 2^32).
  void set_epoch(std::int64_t epoch);
  const Dataset& dataset() const { return dataset_; }

 private:
  Batch load(std::int64_t index);
  Batch empty_batch(std::int64_t rows) const;
  void fill(std::int64_t index, void* x, void* label) const;
  void start(std::int64_t index);
  std::span<const std::uint32_t> rows(std::int64_t index) const;
  void check_owner() const;

  Context context_;
  Dataset dataset_;
  DataLoaderOptions options_;
  std::int64_t epoch_ = 0;
  std::uint64_t passes_ = 0;                   // calls of begin(), to know an old iterator
  std::vector<std::uint32_t> order_;           // of the dataset's rows; empty if the loader was moved from
  std::unique_ptr<detail::BatchAhead> ahead_;  // null on a CPU
};

/// An input iterator over the batches of one epoch; each `*` makes the batch.
class DataLoader::Iterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using difference_type = std::ptrdiff_t;
  using value_type = Batch;

  /// Errors: StateError if another epoch was begun since, if the loader was moved from, or while the context's stream
  /// is being captured; OutOfMemoryError; CudaError. After an error the iterator is where it was.
  Batch operator*() const;
  Iterator& operator++() {
    ++index_;
    return *this;
  }
  void operator++(int) { ++index_; }
  bool operator==(std::default_sentinel_t) const { return index_ >= loader_->size(); }

 private:
  friend DataLoader;
  Iterator(DataLoader* loader, std::uint64_t pass) : loader_(loader), pass_(pass) {}

  DataLoader* loader_;
  std::uint64_t pass_;
  std::int64_t index_ = 0;
};

}  // namespace fusegrad
