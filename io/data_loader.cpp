#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <span>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/autograd/random.h>
#include <fusegrad/autograd/uploads.h>
#include <fusegrad/io/data_loader.h>

namespace fusegrad {
namespace {

using detail::require;

/// Streams of shuffles: apart from those of initialisers, which count parameters from 0 under the same seed.
constexpr std::uint64_t kShuffleStreams = std::uint64_t{1} << 32;
constexpr std::int64_t kMostEpochs = std::int64_t{1} << 32;
constexpr std::int64_t kMostRows = std::numeric_limits<std::uint32_t>::max();

/// Uniform in [0, bound), biased by at most bound / 2^64: the upper half of a 64-bit draw times `bound`.
std::uint32_t draw_below(const Random& random, std::uint64_t index, std::uint32_t bound) {
  const std::uint64_t high = random.bits(2 * index);
  const std::uint64_t low = random.bits(2 * index + 1);
  return static_cast<std::uint32_t>((high * bound + ((low * bound) >> 32)) >> 32);
}

/// The rows 0 .. n-1 in an order that depends on (seed, epoch, n) only: Fisher and Yates, from the last row down, with
/// draw number i for row i.
void shuffle(std::span<std::uint32_t> order, std::uint64_t seed, std::int64_t epoch) {
  std::iota(order.begin(), order.end(), 0u);
  const Random random(seed, kShuffleStreams + static_cast<std::uint64_t>(epoch));
  for (std::size_t i = order.size(); i-- > 1;) {
    std::swap(order[i], order[draw_below(random, i, static_cast<std::uint32_t>(i + 1))]);
  }
}

/// Copies rows [first, first + count) of the epoch's order, each of `width` elements, rounding each element once.
template <class From, class To>
void gather(const From* from, std::span<const std::uint32_t> rows, std::int64_t width, To* to) {
  for (const std::uint32_t row : rows) {
    const From* source = from + std::int64_t{row} * width;
    if constexpr (std::is_same_v<From, To>) {
      std::copy_n(source, width, to);
    } else {
      std::transform(source, source + width, to, [](From value) { return static_cast<To>(value); });
    }
    to += width;
  }
}

/// Elements in a row of a dataset's table.
std::int64_t width_of(const Tensor& table) { return table.size() / table.shape()[0]; }

/// An uninitialised tensor for `rows` rows of a table.
Tensor empty_rows(const Context& context, const Tensor& table, std::int64_t rows, Dtype dtype) {
  return Tensor::empty(context, table.shape().rank() == 1 ? Shape{rows} : Shape{rows, width_of(table)}, dtype);
}

/// Writes the named rows of a table to host memory, as `dtype`.
void gather_rows(detail::ThreadPool& pool, const Tensor& table, std::span<const std::uint32_t> rows, Dtype dtype,
                 void* to) {
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::int64_t width = width_of(table);
  const auto copy = [&]<class From, class To>() {
    const From* from = table.data<From>().data();
    constexpr std::int64_t kTaskElements = 1 << 16;
    const std::int64_t task_rows = std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(1, width));
    const std::int64_t tasks = (count + task_rows - 1) / task_rows;
    pool.run(tasks, [&](std::int64_t task, int) {
      const std::int64_t first = task * task_rows;
      const std::int64_t last = std::min(first + task_rows, count);
      gather(from, rows.subspan(first, last - first), width, static_cast<To*>(to) + first * width);
    });
  };
  if (table.dtype() == Dtype::i32) {
    copy.template operator()<std::int32_t, std::int32_t>();
  } else {
    detail::visit_floating(dtype, [&]<class To>() { copy.template operator()<float, To>(); });
  }
}

void check_range(const Tensor& table, Dtype dtype, const char* what) {
  if (dtype != Dtype::bf16 && dtype != Dtype::f16) return;
  detail::visit_floating(dtype, [&]<class T>() {
    const std::span<const float> values = table.data<float>();
    const auto bad =
        std::ranges::find_if(values, [](float value) { return std::isinf(static_cast<float>(static_cast<T>(value))); });
    if (bad == values.end()) return;
    const std::int64_t at = bad - values.begin();
    const std::int64_t width = table.shape()[1];
    throw ValueError(detail::format("data loader: {} {} of row {} is {}, too large for {}; scale the dataset first",
                                    what, at % width, at / width, *bad, name_of(dtype)));
  });
}

/// Labels or targets.
const Tensor& label_table(const Dataset& dataset) {
  return dataset.is_classification() ? dataset.labels() : dataset.targets();
}

Dtype label_dtype(const Dataset& dataset, Dtype dtype) {
  return dataset.is_classification() ? Dtype::i32 : accumulation_dtype(dtype);
}

std::size_t bytes_of(const Tensor& table, std::int64_t rows, Dtype dtype) {
  return static_cast<std::size_t>(rows * width_of(table)) * size_of(dtype);
}

/// Where the labels of a batch are staged: behind x, aligned.
std::size_t label_offset(std::size_t x_bytes) {
  constexpr std::size_t kAlignment = 256;
  return (x_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

/// A batch on its way to a GPU.
struct detail::BatchAhead {
  /// Gives the batch up.
  void drop() {
    if (!batch) return;
    uploads->join();  // its memory goes back to the context, whose work must not overtake the copies
    batch.reset();
  }

  Context context;
  std::optional<Batch> batch = std::nullopt;
  std::int64_t index = 0;            // of the batch in its epoch
  std::unique_ptr<Uploads> uploads;  // last: destroyed first, it waits for the copies into the batch
};

DataLoader::DataLoader(const Context& context, const Dataset& dataset, const DataLoaderOptions& options)
    : context_(context), dataset_(dataset), options_(options) {
  require<ValueError>(options.batch_size >= 1, "data loader: batch_size must be at least 1, got {}",
                      options.batch_size);
  require<DtypeError>(is_floating(options.dtype), "data loader: the dtype must be f64, f32, bf16 or f16, got {}",
                      name_of(options.dtype));
  require<ValueError>(dataset_.size() <= kMostRows, "data loader: the dataset has {} rows, more than {}",
                      dataset_.size(), kMostRows);
  require<ValueError>(size() > 0, "data loader: drop_last leaves no batch: batch_size is {}, the dataset has {} rows",
                      options.batch_size, dataset_.size());
  check_range(dataset_.features(), options.dtype, "feature");
  order_.resize(static_cast<std::size_t>(dataset_.size()));
  std::iota(order_.begin(), order_.end(), 0u);
  if (context_.device().type == DeviceType::cpu) return;
  const auto most = static_cast<std::int64_t>(rows(0).size());
  const std::size_t bytes = label_offset(bytes_of(dataset_.features(), most, options.dtype)) +
                            bytes_of(label_table(dataset_), most, label_dtype(dataset_, options.dtype));
  ahead_ = std::make_unique<detail::BatchAhead>(detail::BatchAhead{
      .context = context_, .uploads = context_.state().backend().uploads(bytes, size() > 1 ? 2 : 1)});
}

DataLoader::~DataLoader() = default;
DataLoader::DataLoader(DataLoader&& other) noexcept = default;
DataLoader& DataLoader::operator=(DataLoader&& other) noexcept = default;

void DataLoader::check_owner() const {
  require<StateError>(!order_.empty(), "data loader: this loader was moved from");
}

DataLoader::Iterator DataLoader::begin() {
  check_owner();
  require<StateError>(epoch_ < kMostEpochs, "data loader: there is no epoch after {}", kMostEpochs - 1);
  if (ahead_) ahead_->drop();
  if (options_.shuffle_seed) shuffle(order_, *options_.shuffle_seed, epoch_);
  ++epoch_;
  return {this, ++passes_};
}

std::int64_t DataLoader::size() const {
  const std::int64_t full = dataset_.size() / options_.batch_size;
  const bool rest = dataset_.size() % options_.batch_size != 0;
  return full + (rest && !options_.drop_last ? 1 : 0);
}

void DataLoader::set_epoch(std::int64_t epoch) {
  require<ValueError>(epoch >= 0 && epoch < kMostEpochs, "data loader: the epoch must be 0 to {}, got {}",
                      kMostEpochs - 1, epoch);
  epoch_ = epoch;
}

std::span<const std::uint32_t> DataLoader::rows(std::int64_t index) const {
  const std::int64_t first = index * options_.batch_size;
  return std::span(order_).subspan(first, std::min(options_.batch_size, dataset_.size() - first));
}

Batch DataLoader::empty_batch(std::int64_t rows) const {
  return {.x = empty_rows(context_, dataset_.features(), rows, options_.dtype),
          .label = empty_rows(context_, label_table(dataset_), rows, label_dtype(dataset_, options_.dtype))};
}

/// Writes batch `index` of the epoch to host memory.
void DataLoader::fill(std::int64_t index, void* x, void* label) const {
  detail::ThreadPool& pool = context_.state().pool();
  gather_rows(pool, dataset_.features(), rows(index), options_.dtype, x);
  gather_rows(pool, label_table(dataset_), rows(index), label_dtype(dataset_, options_.dtype), label);
}

/// Sends batch `index` of the epoch on its way.
void DataLoader::start(std::int64_t index) {
  ahead_->drop();
  std::byte* const staged = ahead_->uploads->stage();
  Batch batch = empty_batch(static_cast<std::int64_t>(rows(index).size()));
  const auto x_bytes = static_cast<std::size_t>(batch.x.bytes());
  const auto label_bytes = static_cast<std::size_t>(batch.label.bytes());
  const std::size_t offset = label_offset(x_bytes);
  fill(index, staged, staged + offset);
  ahead_->uploads->start({{.to = batch.x.mutable_raw(), .offset = 0, .bytes = x_bytes},
                          {.to = batch.label.mutable_raw(), .offset = offset, .bytes = label_bytes}});
  ahead_->batch = std::move(batch);
  ahead_->index = index;
}

Batch DataLoader::load(std::int64_t index) {
  if (!ahead_) {
    Batch batch = empty_batch(static_cast<std::int64_t>(rows(index).size()));
    fill(index, batch.x.mutable_raw(), batch.label.mutable_raw());
    return batch;
  }
  if (!ahead_->batch || ahead_->index != index) start(index);
  ahead_->uploads->join();
  Batch batch = std::move(*ahead_->batch);
  ahead_->batch.reset();
  if (index + 1 < size()) {
    try {
      start(index + 1);
    } catch (const OutOfMemoryError&) {
      // There is no room for two batches: the next one is loaded when it is asked for.
    }
  }
  return batch;
}

Batch DataLoader::Iterator::operator*() const {
  loader_->check_owner();
  require<StateError>(pass_ == loader_->passes_, "data loader: this iterator is of an epoch that has ended");
  return loader_->load(index_);
}

}  // namespace fusegrad
