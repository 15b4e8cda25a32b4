#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <ranges>
#include <set>
#include <vector>

#include <gmock/gmock.h>

#include "tests/io/fake_gpu.h"
#include "tests/io/message_of.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/io/data_loader.h>

namespace fusegrad {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

static_assert(std::ranges::input_range<DataLoader>);

Context cpu(int threads = 1) { return Context::cpu({.threads = threads}); }

/// Rows that name themselves: row r is [r, r + 1/2], its label r mod 10.
Dataset numbered(std::int64_t rows) {
  std::vector<float> features;
  std::vector<std::int32_t> labels;
  for (std::int64_t row = 0; row < rows; ++row) {
    features.push_back(static_cast<float>(row));
    features.push_back(static_cast<float>(row) + 0.5f);
    labels.push_back(static_cast<std::int32_t>(row % 10));
  }
  return Dataset::classification(Tensor::from(cpu(), {rows, 2}, features), Tensor::from(cpu(), {rows}, labels));
}

/// The rows of one epoch, in order; checks that features and label belong together.
std::vector<std::int64_t> next_epoch(DataLoader& loader) {
  std::vector<std::int64_t> rows;
  for (auto [x, label] : loader) {
    const std::vector<float> values = x.to(Dtype::f32).to_vector<float>();
    const std::vector<std::int32_t> labels = label.to_vector<std::int32_t>();
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const auto row = static_cast<std::int64_t>(values[2 * i]);
      EXPECT_EQ(values[2 * i + 1], static_cast<float>(row) + 0.5f);
      EXPECT_EQ(labels[i], row % 10);
      rows.push_back(row);
    }
  }
  return rows;
}

std::vector<std::int64_t> sorted(std::vector<std::int64_t> rows) {
  std::ranges::sort(rows);
  return rows;
}

std::vector<std::int64_t> ascending(std::int64_t count) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

TEST(DataLoaderTest, KeepsTheOrderWithoutASeed) {
  DataLoader loader(cpu(), numbered(10), {.batch_size = 4});
  for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(next_epoch(loader), ascending(10));
}

TEST(DataLoaderTest, KeepsOrDropsTheLastPartialBatch) {
  const auto sizes = [](const DataLoaderOptions& options) {
    DataLoader loader(cpu(), numbered(10), options);
    std::vector<std::int64_t> sizes;
    for (auto [x, label] : loader) {
      EXPECT_EQ(x.shape(), Shape({label.shape()[0], 2}));
      sizes.push_back(label.shape()[0]);
    }
    EXPECT_EQ(loader.size(), static_cast<std::int64_t>(sizes.size()));
    return sizes;
  };
  EXPECT_THAT(sizes({.batch_size = 4}), ElementsAre(4, 4, 2));
  EXPECT_THAT(sizes({.batch_size = 4, .drop_last = true}), ElementsAre(4, 4));
  EXPECT_THAT(sizes({.batch_size = 5}), ElementsAre(5, 5));
  EXPECT_THAT(sizes({.batch_size = 5, .drop_last = true}), ElementsAre(5, 5));
  EXPECT_THAT(sizes({.batch_size = 10}), ElementsAre(10));
  EXPECT_THAT(sizes({.batch_size = 1000}), ElementsAre(10)) << "a batch may exceed the data";
  EXPECT_THAT(sizes({.batch_size = std::numeric_limits<std::int64_t>::max()}), ElementsAre(10));
  EXPECT_THAT(sizes({}), AllOf(::testing::SizeIs(10), Each(1)));
}

TEST(DataLoaderTest, ShufflesEveryEpochAnew) {
  DataLoader loader(cpu(), numbered(100), {.batch_size = 32, .shuffle_seed = 7});
  std::set<std::vector<std::int64_t>> orders{ascending(100)};
  for (int epoch = 0; epoch < 20; ++epoch) {
    EXPECT_EQ(loader.epoch(), epoch);
    const std::vector<std::int64_t> order = next_epoch(loader);
    EXPECT_EQ(sorted(order), ascending(100)) << "each row once";
    EXPECT_TRUE(orders.insert(order).second) << "no order twice";
  }
}

TEST(DataLoaderTest, OrdersDependOnSeedAndEpochOnly) {
  DataLoader reference(cpu(), numbered(50), {.batch_size = 8, .shuffle_seed = 3});
  std::vector<std::vector<std::int64_t>> orders;
  for (int epoch = 0; epoch < 4; ++epoch) orders.push_back(next_epoch(reference));

  DataLoader same(cpu(2), numbered(50), {.batch_size = 50, .shuffle_seed = 3, .dtype = Dtype::f64});
  for (int epoch = 0; epoch < 4; ++epoch) EXPECT_EQ(next_epoch(same), orders[static_cast<std::size_t>(epoch)]);

  DataLoader resumed(cpu(), numbered(50), {.batch_size = 8, .shuffle_seed = 3});
  for (const std::int64_t epoch : {2, 0, 3, 3}) {
    resumed.set_epoch(epoch);
    EXPECT_EQ(next_epoch(resumed), orders[static_cast<std::size_t>(epoch)]);
    EXPECT_EQ(resumed.epoch(), epoch + 1);
  }

  DataLoader abandoned(cpu(), numbered(50), {.batch_size = 8, .shuffle_seed = 3});
  for ([[maybe_unused]] const Batch& batch : abandoned) break;
  EXPECT_EQ(next_epoch(abandoned), orders[1]) << "an epoch left early counts";

  DataLoader other(cpu(), numbered(50), {.batch_size = 8, .shuffle_seed = 4});
  EXPECT_NE(next_epoch(other), orders[0]);
  EXPECT_THROW(other.set_epoch(-1), ValueError);
  EXPECT_THROW(other.set_epoch(std::int64_t{1} << 32), ValueError);
  EXPECT_EQ(other.epoch(), 1);
}

// The constants come from an independent implementation of Philox4x32-10 and of the shuffle, in Python.
TEST(DataLoaderTest, OrdersAreFixedForever) {
  DataLoader small(cpu(), numbered(10), {.batch_size = 10, .shuffle_seed = 1});
  EXPECT_THAT(next_epoch(small), ElementsAre(3, 7, 0, 4, 1, 5, 6, 8, 9, 2));
  EXPECT_THAT(next_epoch(small), ElementsAre(6, 4, 9, 3, 8, 2, 7, 1, 5, 0));
  DataLoader wide(cpu(), numbered(10), {.batch_size = 10, .shuffle_seed = 0xfedcba9876543210});
  wide.set_epoch((std::int64_t{1} << 32) - 1);
  EXPECT_THAT(next_epoch(wide), ElementsAre(5, 9, 6, 1, 2, 7, 3, 0, 4, 8));
  EXPECT_THROW(wide.begin(), StateError) << "there is no epoch 2^32";

  DataLoader large(cpu(), numbered(1000000), {.batch_size = 1000000, .shuffle_seed = 1});
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a over the rows
  for (const std::int64_t row : next_epoch(large)) hash = (hash ^ static_cast<std::uint64_t>(row)) * 0x100000001b3;
  EXPECT_EQ(hash, 0x6b9628c3bb87e249);
}

TEST(DataLoaderTest, EveryRowIsEquallyLikelyEverywhere) {
  constexpr std::int64_t kRows = 8;
  constexpr int kEpochs = 8000;
  DataLoader loader(cpu(), numbered(kRows), {.batch_size = kRows, .shuffle_seed = 5});
  std::vector<std::vector<int>> counts(kRows, std::vector<int>(kRows));
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<std::int64_t> order = next_epoch(loader);
    for (std::size_t place = 0; place < order.size(); ++place) {
      ++counts[place][static_cast<std::size_t>(order[place])];
    }
  }
  // Binomial: mean 1000, standard deviation 29.6; five of them.
  for (const auto& row : counts) EXPECT_THAT(row, Each(AllOf(::testing::Ge(852), ::testing::Le(1148))));
}

TEST(DataLoaderTest, RoundsToEachDtypeOnce) {
  const std::vector<float> values{1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1p-8f + 0x1p-20f, -0.1f, 0x1p-149f, 65519.0f};
  const Dataset data = Dataset::classification(Tensor::from(cpu(), {1, 6}, values),
                                               Tensor::from(cpu(), {1}, std::vector<std::int32_t>{0}));
  const auto x = [&](Dtype dtype) {
    DataLoader loader(cpu(), data, {.dtype = dtype});
    return (*loader.begin()).x;
  };
  EXPECT_EQ(x(Dtype::f32).to_vector<float>(), values);
  EXPECT_THAT(x(Dtype::f64).to_vector<double>(),
              ElementsAre(1 + 0x1p-8, 1 + 0x3p-8, 1 + 0x1p-8 + 0x1p-20, static_cast<double>(-0.1f), 0x1p-149, 65519.0));
  EXPECT_THAT(x(Dtype::bf16).to(Dtype::f32).to_vector<float>(),
              ElementsAre(1, 1 + 0x4p-8f, 1 + 0x2p-8f, -0x1.9ap-4f, 0, 65536.0f));
  EXPECT_THAT(x(Dtype::f16).to(Dtype::f32).to_vector<float>(),
              ElementsAre(1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1p-8f, -0x1.998p-4f, 0, 65504.0f));
}

TEST(DataLoaderTest, RefusesWhatADtypeCannotHold) {
  const auto load = [](float value, Dtype dtype) {
    const Dataset data = Dataset::regression(Tensor::from(cpu(), {2, 2}, std::vector<float>{0, 1, value, 2}),
                                             Tensor::from(cpu(), {2, 1}, std::vector<float>{0, 0}));
    DataLoader loader(cpu(), data, {.dtype = dtype});
  };
  EXPECT_THAT(message_of<ValueError>([&] { load(-65520, Dtype::f16); }),
              HasSubstr("feature 0 of row 1 is -65520, too large for f16"));
  EXPECT_NO_THROW(load(-65519.99f, Dtype::f16));
  EXPECT_THROW(load(std::numeric_limits<float>::max(), Dtype::bf16), ValueError);
  EXPECT_NO_THROW(load(std::numeric_limits<float>::max(), Dtype::f32));
  EXPECT_THAT(message_of<DtypeError>([&] { load(0, Dtype::u8); }), HasSubstr("got u8"));
}

TEST(DataLoaderTest, GivesRegressionTargetsInAccumulationPrecision) {
  const Dataset data = Dataset::regression(Tensor::from(cpu(), {3, 1}, std::vector<float>{0, 1, 2}),
                                           Tensor::from(cpu(), {3, 2}, std::vector<float>{1e6f, 2, 3, 4, 5, 6}));
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    DataLoader loader(cpu(), data, {.batch_size = 2, .dtype = dtype});
    auto batch = loader.begin();
    EXPECT_EQ((*batch).label.dtype(), dtype == Dtype::f64 ? Dtype::f64 : Dtype::f32);
    EXPECT_EQ((*batch).label.shape(), Shape({2, 2}));
    EXPECT_THAT((*batch).label.to(Dtype::f32).to_vector<float>(), ElementsAre(1e6f, 2, 3, 4));
    ++batch;
    EXPECT_THAT((*batch).label.to(Dtype::f32).to_vector<float>(), ElementsAre(5, 6));
  }
}

TEST(DataLoaderTest, RefusesOptionsWithoutMeaning) {
  EXPECT_THAT(message_of<ValueError>([] { DataLoader(cpu(), numbered(3), {.batch_size = 0}); }),
              HasSubstr("batch_size must be at least 1, got 0"));
  EXPECT_THROW(DataLoader(cpu(), numbered(3), {.batch_size = -1}), ValueError);
  EXPECT_THAT(message_of<ValueError>([] { DataLoader(cpu(), numbered(3), {.batch_size = 4, .drop_last = true}); }),
              HasSubstr("drop_last leaves no batch: batch_size is 4, the dataset has 3 rows"));
}

TEST(DataLoaderTest, KeepsTheDatasetAlive) {
  auto loader = [] {
    const Dataset data = numbered(20);
    return DataLoader(cpu(), data, {.batch_size = 8, .shuffle_seed = 1});
  }();
  EXPECT_EQ(sorted(next_epoch(loader)), ascending(20));
  for (auto [x, label] : DataLoader(cpu(), numbered(3), {.batch_size = 3})) {
    EXPECT_THAT(label.to_vector<std::int32_t>(), ElementsAre(0, 1, 2));
  }
}

TEST(DataLoaderTest, NeverWritesToABatchThatSomeoneHolds) {
  DataLoader loader(cpu(), numbered(9), {.batch_size = 3});
  std::vector<Batch> batches;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const Batch& batch : loader) batches.push_back(batch);
  }
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const float first = static_cast<float>(3 * (i % 3));
    EXPECT_EQ(batches[i].x.data<float>()[0], first);
    EXPECT_EQ(batches[i].x.data<float>()[5], first + 2.5f);
  }
}

TEST(DataLoaderTest, RefusesAnIteratorOfAnEarlierEpoch) {
  DataLoader loader(cpu(), numbered(9), {.batch_size = 3});
  const auto old = loader.begin();
  EXPECT_NO_THROW(*old);
  loader.begin();
  EXPECT_THROW(*old, StateError);
}

TEST(DataLoaderTest, SaysSoWhenItWasMovedFrom) {
  DataLoader loader(cpu(), numbered(9), {.batch_size = 4, .shuffle_seed = 1});
  const auto old = loader.begin();
  DataLoader moved = std::move(loader);
  // NOLINTBEGIN(bugprone-use-after-move): what they do then is the test
  EXPECT_THAT(message_of<StateError>([&] { loader.begin(); }), HasSubstr("this loader was moved from"));
  EXPECT_THAT(message_of<StateError>([&] { *old; }), HasSubstr("this loader was moved from"));
  EXPECT_EQ(loader.size(), 3);
  EXPECT_EQ(loader.dataset().size(), 9);
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_EQ(moved.epoch(), 1);
  std::int64_t rows = 0;
  for (auto [x, label] : moved) rows += x.shape()[0] + 0 * label.size();
  EXPECT_EQ(rows, 9);
  loader = std::move(moved);
  EXPECT_NO_THROW(*loader.begin());
  EXPECT_THROW(moved.begin(), StateError);  // NOLINT(bugprone-use-after-move)
}

TEST(DataLoaderTest, AllocatesNothingAfterTheFirstEpoch) {
  const Context context = cpu(2);
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    DataLoader loader(context, numbered(100), {.batch_size = 32, .shuffle_seed = 1, .dtype = dtype});
    const auto run = [&] {
      for ([[maybe_unused]] auto [x, label] : loader) {
      }
    };
    run();
    const MemoryUse before = context.memory();
    for (int epoch = 0; epoch < 5; ++epoch) run();
    EXPECT_EQ(context.memory().system_allocations, before.system_allocations);
    EXPECT_EQ(context.memory().in_use, before.in_use);
  }
}

// Rows wide and many enough to be cut into tasks, with a width that divides nothing.
TEST(DataLoaderTest, GivesTheSameBatchWithAnyNumberOfThreads) {
  constexpr std::int64_t kRows = 3001;
  constexpr std::int64_t kWidth = 129;
  std::vector<float> features(static_cast<std::size_t>(kRows * kWidth));
  for (std::size_t i = 0; i < features.size(); ++i) features[i] = static_cast<float>(i) * 0x1p-19f;
  const Dataset data = Dataset::regression(Tensor::from(cpu(), {kRows, kWidth}, features),
                                           Tensor::from(cpu(), {kRows, kWidth}, features));
  for (const int threads : {1, 2, 3}) {
    const Context context = cpu(threads);
    DataLoader loader(context, data, {.batch_size = kRows});
    // The cache hands this block to the batch: what is not written stays NaN.
    Tensor::full(context, {kRows, kWidth}, Dtype::f32, std::numeric_limits<double>::quiet_NaN());
    auto [x, target] = *loader.begin();
    EXPECT_EQ(x.to_vector<float>(), features);
    EXPECT_EQ(target.to_vector<float>(), features);
  }
}

TEST(DataLoaderTest, CopiesToAnotherDevice) {
  const test::FakeGpu gpu;
  const Context context = gpu.context();
  DataLoader loader(context, numbered(5), {.batch_size = 3, .dtype = Dtype::f16});
  std::vector<float> values;
  for (auto [x, label] : loader) {
    EXPECT_EQ(x.context(), context);
    EXPECT_EQ(label.context(), context);
    EXPECT_EQ(x.dtype(), Dtype::f16);
    for (const f16 value : x.to_vector<f16>()) values.push_back(value);
  }
  EXPECT_THAT(values, ElementsAre(0, .5f, 1, 1.5f, 2, 2.5f, 3, 3.5f, 4, 4.5f));
  EXPECT_EQ(gpu.copies_from_host(), 4) << "x and label of two batches";
}

TEST(DataLoaderTest, CopiesOneBatchAhead) {
  const test::FakeGpu gpu;
  DataLoader loader(gpu.context(), numbered(9), {.batch_size = 3});
  auto batch = loader.begin();
  EXPECT_EQ(gpu.copies_from_host(), 0);
  for (const int batches : {2, 3, 3}) {
    *batch;
    ++batch;
    EXPECT_EQ(gpu.copies_from_host(), 2 * batches);
  }
  EXPECT_EQ(batch, loader.end());
}

TEST(DataLoaderTest, NeedsNoMemoryForASecondBatch) {
  test::FakeGpu gpu;
  constexpr std::int64_t kRows = 1000;
  DataLoader loader(gpu.context(), numbered(3 * kRows), {.batch_size = kRows});
  {
    // The only block for an x: each batch leaves it to the next one.
    const Tensor x = Tensor::empty(gpu.context(), {kRows, 2}, Dtype::f32);
    gpu.refuse_blocks_of(static_cast<std::size_t>(x.bytes()));
  }
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<std::int64_t> rows;
    for (auto [x, label] : loader) rows.push_back(static_cast<std::int64_t>(x.to_vector<float>()[0]));
    EXPECT_THAT(rows, ElementsAre(0, kRows, 2 * kRows));
  }

  auto batch = loader.begin();
  {
    const Batch held = *batch;
    ++batch;
    EXPECT_THROW(*batch, OutOfMemoryError);
  }
  EXPECT_EQ((*batch).x.to_vector<float>()[0], kRows) << "the iterator is where it was";
}

}  // namespace
}  // namespace fusegrad
