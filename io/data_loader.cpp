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

/// The named rows of a host table as a new tensor on `context`.
Tensor gather_batch(const Context& context, const Tensor& table, std::span<const std::uint32_t> rows, Dtype dtype) {
  const auto count = static_cast<std::int64_t>(rows.size());
  const std::int64_t width = table.size() / table.shape()[0];
  const Shape shape = table.shape().rank() == 1 ? Shape{count} : Shape{count, width};
  const bool on_host = context.device().type == DeviceType::cpu;
  Tensor batch = Tensor::empty(on_host ? context : table.context(), shape, dtype);

  const auto copy = [&]<class From, class To>() {
    const From* from = table.data<From>().data();
    To* to = batch.mutable_data<To>().data();
    constexpr std::int64_t kTaskElements = 1 << 16;
    const std::int64_t task_rows = std::max<std::int64_t>(1, kTaskElements / std::max<std::int64_t>(1, width));
    const std::int64_t tasks = (count + task_rows - 1) / task_rows;
    context.state().pool().run(tasks, [&](std::int64_t task, int) {
      const std::int64_t first = task * task_rows;
      const std::int64_t last = std::min(first + task_rows, count);
      gather(from, rows.subspan(first, last - first), width, to + first * width);
    });
  };
  if (table.dtype() == Dtype::i32) {
    copy.template operator()<std::int32_t, std::int32_t>();
  } else {
    detail::visit_floating(dtype, [&]<class To>() { copy.template operator()<float, To>(); });
  }
  return on_host ? batch : batch.to(context);
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

}  // namespace

DataLoader::DataLoader(const Context& context, Dataset dataset, const DataLoaderOptions& options)
    : context_(context), dataset_(std::move(dataset)), options_(options) {
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
}

DataLoader::Iterator DataLoader::begin() {
  require<StateError>(epoch_ < kMostEpochs, "data loader: there is no epoch after {}", kMostEpochs - 1);
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

Batch DataLoader::load(std::int64_t index) {
  const std::int64_t first = index * options_.batch_size;
  const std::int64_t count = std::min(options_.batch_size, dataset_.size() - first);
  const auto rows = std::span<const std::uint32_t>(order_).subspan(first, count);
  const bool classes = dataset_.is_classification();
  return {.x = gather_batch(context_, dataset_.features(), rows, options_.dtype),
          .label = classes ? gather_batch(context_, dataset_.labels(), rows, Dtype::i32)
                           : gather_batch(context_, dataset_.targets(), rows, accumulation_dtype(options_.dtype))};
}

Batch DataLoader::Iterator::operator*() const {
  require<StateError>(pass_ == loader_->passes_, "data loader: this iterator is of an epoch that has ended");
  return loader_->load(index_);
}

}  // namespace fusegrad
