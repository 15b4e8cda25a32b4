// What a loader promises on each device: the same batches, in order beside all other work of the context, whatever
// happens to the loader while copies are under way; and that a tensor needs no loader to be trained on.
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/allocations.h"
#include "tests/support/device.h"

#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/tape.h>
#include <fusegrad/io/data_loader.h>
#include <fusegrad/nn/mlp.h>
#include <fusegrad/ops/mse_loss.h>
#include <fusegrad/ops/softmax_cross_entropy.h>

namespace fusegrad::test {
namespace {

using testing::Each;

constexpr std::int64_t kWidth = 300;
constexpr std::int64_t kTargets = 3;

Context host() { return Context::cpu({.threads = 1}); }

std::vector<float> numbers(std::int64_t count, float first) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i % 4099) * 0x1p-9f;
  return values;
}

Dataset classification(std::int64_t rows) {
  std::vector<std::int32_t> labels(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int32_t>(i % 11);
  return Dataset::classification(Tensor::from(host(), {rows, kWidth}, numbers(rows * kWidth, 0)),
                                 Tensor::from(host(), {rows}, labels));
}

Dataset regression(std::int64_t rows) {
  return Dataset::regression(Tensor::from(host(), {rows, kWidth}, numbers(rows * kWidth, 0)),
                             Tensor::from(host(), {rows, kTargets}, numbers(rows * kTargets, -2)));
}

/// Same shape, dtype and bits.
testing::AssertionResult same(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return testing::AssertionFailure() << "another shape or dtype";
  return detail::visit_any(a.dtype(), [&]<class T>() {
    const std::vector<T> left = a.to_vector<T>();
    const std::vector<T> right = b.to_vector<T>();
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (left[i] == right[i]) continue;  // there are no NaN and no -0
      return testing::AssertionFailure() << "element " << i << ": " << static_cast<double>(left[i]) << ", "
                                         << static_cast<double>(right[i]);
    }
    return testing::AssertionSuccess();
  });
}

testing::AssertionResult same(const Batch& a, const Batch& b) {
  const testing::AssertionResult x = same(a.x, b.x);
  return x ? same(a.label, b.label) : x;
}

/// All batches of the next epoch.
std::vector<Batch> collect(DataLoader& loader) {
  std::vector<Batch> batches;
  for (const Batch& batch : loader) batches.push_back(batch);
  return batches;
}

void expect_same(const std::vector<Batch>& a, const std::vector<Batch>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same(a[i], b[i])) << "batch " << i;
}

using DataLoaderDeviceTest = DeviceTest;
INSTANTIATE_TEST_SUITE_P(Each, DataLoaderDeviceTest, kDevices, device_name);

TEST_P(DataLoaderDeviceTest, GivesTheSameBatchesAsOnTheHost) {
  for (const Dataset& data : {classification(150), regression(150)}) {
    for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
      const DataLoaderOptions options{.batch_size = 32, .shuffle_seed = 4, .dtype = dtype};
      DataLoader loader(context(), data, options);
      DataLoader reference(host(), data, options);
      for (int epoch = 0; epoch < 3; ++epoch) {
        auto expected = reference.begin();
        for (const Batch& batch : loader) {
          EXPECT_EQ(batch.x.context(), context());
          EXPECT_EQ(batch.label.context(), context());
          EXPECT_TRUE(same(batch, *expected)) << name_of(dtype);
          ++expected;
        }
        EXPECT_EQ(expected, reference.end());
      }
    }
  }
}

TEST_P(DataLoaderDeviceTest, NeverWritesToABatchThatSomeoneHolds) {
  const DataLoaderOptions options{.batch_size = 32, .shuffle_seed = 2};
  DataLoader loader(context(), classification(150), options);
  DataLoader reference(host(), classification(150), options);
  const std::vector<Batch> first = collect(loader);
  const std::vector<Batch> second = collect(loader);
  collect(loader);
  expect_same(first, collect(reference));
  expect_same(second, collect(reference));
}

// The context is kept behind the loader: when a batch is let go, the work that reads it has not begun.
TEST_P(DataLoaderDeviceTest, ReusesNoBatchBeforeTheWorkOnIt) {
  const DataLoaderOptions options{.batch_size = 512, .shuffle_seed = 3};
  const Dataset data = classification(8 * 512);
  DataLoader loader(context(), data, options);
  DataLoader reference(host(), data, options);
  collect(loader);
  std::vector<Batch> copies;
  for (auto [x, label] : loader) {
    for (int i = 0; i < 4; ++i) Tensor::full(context(), {1 << 23}, Dtype::f64, i);
    copies.push_back({.x = x.clone(), .label = label.clone()});
  }
  collect(reference);
  expect_same(copies, collect(reference));
}

TEST_P(DataLoaderDeviceTest, LeavesMemoryAloneThatItGaveBack) {
  const Dataset data = classification(200);
  const Shape shape{50, kWidth};
  // What a loader that ends, or begins anew, has on the way goes to blocks that the next tensors take.
  for (int i = 0; i < 3; ++i) {
    {
      DataLoader loader(context(), data, {.batch_size = 50});
      for ([[maybe_unused]] const Batch& batch : loader) break;
    }
    const Tensor a = Tensor::full(context(), shape, Dtype::f32, 7);
    const Tensor b = Tensor::full(context(), shape, Dtype::f32, 8);
    EXPECT_THAT(a.to_vector<float>(), Each(7.0f));
    EXPECT_THAT(b.to_vector<float>(), Each(8.0f));
  }
  DataLoader loader(context(), data, {.batch_size = 50});
  for (int i = 0; i < 3; ++i) {
    for ([[maybe_unused]] const Batch& batch : loader) break;
    loader.begin();
    const Tensor a = Tensor::full(context(), shape, Dtype::f32, 7);
    const Tensor b = Tensor::full(context(), shape, Dtype::f32, 8);
    collect(loader);
    EXPECT_THAT(a.to_vector<float>(), Each(7.0f));
    EXPECT_THAT(b.to_vector<float>(), Each(8.0f));
  }
}

TEST_P(DataLoaderDeviceTest, GoesOnAfterALoopThatEndsEarly) {
  const DataLoaderOptions options{.batch_size = 32, .shuffle_seed = 1};
  DataLoader loader(context(), classification(150), options);
  DataLoader reference(host(), classification(150), options);
  collect(reference);
  collect(reference);
  for ([[maybe_unused]] const Batch& batch : loader) break;
  const auto fail = [&] {
    int steps = 0;
    for ([[maybe_unused]] const Batch& batch : loader) {
      if (++steps == 3) throw ValueError("the third step fails");
    }
  };
  EXPECT_THROW(fail(), ValueError);
  expect_same(collect(loader), collect(reference));
}

TEST_P(DataLoaderDeviceTest, MakesABatchAsOftenAsItIsAskedFor) {
  DataLoader loader(context(), classification(150), {.batch_size = 32});
  DataLoader reference(host(), classification(150), {.batch_size = 32});
  const std::vector<Batch> expected = collect(reference);
  auto batch = loader.begin();
  const Batch once = *batch;
  Batch again = *batch;
  again.x.copy_from(Tensor::zeros(context(), again.x.shape(), again.x.dtype()));
  EXPECT_TRUE(same(once, expected[0]));
  const auto behind = batch;
  ++batch;
  EXPECT_TRUE(same(*batch, expected[1]));
  EXPECT_TRUE(same(*behind, expected[0]));
  ++batch;
  EXPECT_TRUE(same(*batch, expected[2]));
}

TEST_P(DataLoaderDeviceTest, SharesItsContextWithOtherLoaders) {
  const DataLoaderOptions of_classes{.batch_size = 32, .shuffle_seed = 1, .dtype = Dtype::bf16};
  const DataLoaderOptions of_targets{.batch_size = 32, .shuffle_seed = 2};
  DataLoader classes(context(), classification(150), of_classes);
  DataLoader targets(context(), regression(150), of_targets);
  std::vector<Batch> got_classes;
  std::vector<Batch> got_targets;
  auto target = targets.begin();
  for (const Batch& batch : classes) {
    got_classes.push_back(batch);
    got_targets.push_back(*target);
    ++target;
  }
  DataLoader expected_classes(host(), classification(150), of_classes);
  DataLoader expected_targets(host(), regression(150), of_targets);
  expect_same(got_classes, collect(expected_classes));
  expect_same(got_targets, collect(expected_targets));
}

TEST_P(DataLoaderDeviceTest, MovesWithABatchOnItsWay) {
  DataLoader reference(host(), classification(150), {.batch_size = 32});
  const std::vector<Batch> expected = collect(reference);
  DataLoader first(context(), classification(150), {.batch_size = 32});
  for ([[maybe_unused]] const Batch& batch : first) break;
  DataLoader second = std::move(first);
  expect_same(collect(second), expected);
  // The context of what is moved to ends here, with a batch on its way.
  DataLoader third(context_on(GetParam()), classification(150), {.batch_size = 50});
  for ([[maybe_unused]] const Batch& batch : third) break;
  third = std::move(second);
  expect_same(collect(third), expected);
}

TEST_P(DataLoaderDeviceTest, AllocatesNothingAfterTheFirstEpoch) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    DataLoader loader(context(), classification(150), {.batch_size = 32, .shuffle_seed = 1, .dtype = dtype});
    const auto run = [&] {
      for ([[maybe_unused]] auto [x, label] : loader) {
      }
    };
    run();
    const MemoryUse before = context().memory();
    const std::int64_t allocated = allocations();
    for (int epoch = 0; epoch < 5; ++epoch) run();
    EXPECT_EQ(allocations(), allocated);
    EXPECT_EQ(context().memory().system_allocations, before.system_allocations);
    EXPECT_EQ(context().memory().in_use, before.in_use);
  }
}

/// Loss and gradients of one step.
std::vector<std::vector<float>> step(const Mlp& net, const Context& context, const Tensor& x, const Tensor& label) {
  Tape tape(context);
  const Var y = net(tape.input(x));
  const Var loss = label.dtype() == Dtype::i32 ? softmax_cross_entropy(y, label) : mse_loss(y, label);
  std::vector<std::vector<float>> results{loss.value().to_vector<float>()};
  tape.backward(loss);
  for (const Parameter& parameter : net.parameters()) results.push_back(parameter.gradient().to_vector<float>());
  net.parameters().clear_gradients();
  return results;
}

TEST_P(DataLoaderDeviceTest, IsNotNeededForTensorsThatAreOnTheDevice) {
  const Context on_device = context_on(GetParam(), {.deterministic = true});
  const Mlp classifier(on_device, {.widths = {kWidth, 16, 11}, .seed = 1});
  const Mlp regressor(on_device, {.widths = {kWidth, 16, kTargets}, .seed = 1});
  const std::int64_t rows = 64;
  for (const Dataset& data : {classification(rows), regression(rows)}) {
    const Mlp& net = data.is_classification() ? classifier : regressor;
    DataLoader loader(on_device, data, {.batch_size = rows});
    const Batch batch = *loader.begin();

    // x is computed on the device; the labels are memory there that somebody else owns.
    const Tensor x = data.features().to(on_device).to(Dtype::f64).to(Dtype::f32);
    Tensor owner = (data.is_classification() ? data.labels() : data.targets()).to(on_device);
    const Tensor label = Tensor::borrow_raw(on_device, owner.shape(), owner.dtype(), owner.mutable_raw());
    EXPECT_EQ(step(net, on_device, x, label), step(net, on_device, batch.x, batch.label));
    EXPECT_EQ(step(net, on_device, x.rows(16, 48), label.rows(16, 48)),
              step(net, on_device, batch.x.rows(16, 48), batch.label.rows(16, 48)));
  }
}

}  // namespace
}  // namespace fusegrad::test
