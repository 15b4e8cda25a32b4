// The GPU's optimizer kernels against the CPU's, which they equal bit for bit: one definition, the same roundings.
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/both_devices.h"
#include "tests/support/device.h"
#include "tests/support/dtypes.h"
#include "tests/support/fills.h"
#include "tests/support/matching.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/ops/softmax_cross_entropy_kernels.h>
#include <fusegrad/optim/optimizer_kernels.h>
#include <fusegrad/optim/update_functions.h>

namespace fusegrad::test {
namespace {

using Handle = BothDevices::Handle;
using kernels::FlatSlot;

/// Slots with holes between them that belong to no one, and one without elements.
const std::vector<FlatSlot> kSlots = {{128, 3}, {256, 0}, {256, 200}, {16256, 256}, {40064, 9001}};

/// More slots than fit into one launch.
std::vector<FlatSlot> many_slots() {
  std::vector<FlatSlot> slots;
  for (std::int64_t i = 0; i < 1100; ++i) slots.push_back({.offset = 128 * i, .size = 1 + i % 128});
  return slots;
}

std::int64_t end_of(const std::vector<FlatSlot>& slots) { return slots.back().offset + slots.back().size + 70; }

class OptimizerCudaKernelsTest : public EachDtype {
 protected:
  void SetUp() override { skip_without(DeviceType::cuda); }
  static bool rounds() { return dtype() != wide(); }

  /// The flat buffers of a step, on both devices.
  struct Buffers {
    Buffers(BothDevices& both, std::int64_t size, std::int64_t offset)
        : gradient(both.matrix(wide(), normal(1, size, 1, wide()), {.offset = offset})),
          master(both.matrix(wide(), normal(1, size, 2, wide()), {.offset = offset})),
          value(rounds() ? both.matrix(dtype(), 1, size) : Handle{}),
          m(both.matrix(wide(), normal(1, size, 3, wide()))),
          v(both.matrix(wide(), normal(1, size, 4, wide()).map([](double x) { return x * x; }))) {}

    template <class At>
    kernels::FlatParameters flat(const At& at, const std::vector<FlatSlot>& slots) const {
      return {
          .slots = slots, .gradients = at.vector(gradient), .masters = at.vector(master), .values = at.vector(value)};
    }

    Handle gradient;
    Handle master;
    Handle value;
    Handle m;
    Handle v;
  };

  static void expect_same(BothDevices& both, const Buffers& buffers) {
    EXPECT_TRUE(both.same(buffers.master));
    EXPECT_TRUE(both.same(buffers.m));
    EXPECT_TRUE(both.same(buffers.v));
    if (rounds()) {
      EXPECT_TRUE(both.same(buffers.value));
    }
  }
};
FUSEGRAD_EACH_DTYPE(OptimizerCudaKernelsTest);

TEST_P(OptimizerCudaKernelsTest, AdamGivesTheCpusBits) {
  for (const std::vector<FlatSlot>& slots : {kSlots, many_slots()}) {
    for (const std::int64_t offset : {0, 1}) {
      for (const auto& [beta1, beta2] : {std::pair{0.9, 0.999}, {0.0, 0.999}, {0.9, 0.25}, {0.25, 0.0}}) {
        BothDevices both;
        const Buffers buffers(both, end_of(slots), offset);
        std::vector<kernels::AdamScalars> scalars;
        for (std::size_t i = 0; i < slots.size(); ++i) {
          const auto t = static_cast<std::int64_t>(i) + 1;
          scalars.push_back(kernels::adam_scalars(1e-3, t, i % 2 == 0 ? 1 : 0x1p-10, beta1, beta2, 0.01));
        }
        both.run([&](const auto& execution, const auto& at) {
          for (int step = 0; step < 3; ++step) {
            kernels::adam_step(execution, {.parameters = buffers.flat(at, slots),
                                           .scalars = scalars,
                                           .m = at.vector(buffers.m),
                                           .v = at.vector(buffers.v),
                                           .beta1 = beta1,
                                           .beta2 = beta2,
                                           .epsilon = 1e-8,
                                           .coupled_decay = 0.125});
          }
        });
        expect_same(both, buffers);
      }
    }
  }
}

TEST_P(OptimizerCudaKernelsTest, SgdGivesTheCpusBits) {
  using kernels::Momentum;
  for (const std::vector<FlatSlot>& slots : {kSlots, many_slots()}) {
    for (const std::int64_t offset : {0, 1}) {
      for (const Momentum kind : {Momentum::none, Momentum::classic, Momentum::nesterov}) {
        BothDevices both;
        const Buffers buffers(both, end_of(slots), offset);
        std::vector<kernels::SgdScalars> scalars;
        for (std::size_t i = 0; i < slots.size(); ++i) {
          scalars.push_back(kernels::sgd_scalars(0.1, static_cast<std::int64_t>(1 + i % 3), 0x1p-3, 0.9, 0.25));
        }
        both.run([&](const auto& execution, const auto& at) {
          kernels::sgd_step(execution, {.parameters = buffers.flat(at, slots),
                                        .scalars = scalars,
                                        .kind = kind,
                                        .velocity = kind == Momentum::none ? Vector{} : at.vector(buffers.m),
                                        .momentum = 0.9,
                                        .weight_decay = 0.01});
        });
        expect_same(both, buffers);
      }
    }
  }
}

TEST_P(OptimizerCudaKernelsTest, FindTheFirstNonFiniteSlot) {
  const double largest =
      wide() == Dtype::f64 ? std::numeric_limits<double>::max() : double{std::numeric_limits<float>::max()};
  for (const std::vector<FlatSlot>& slots : {kSlots, many_slots()}) {
    Values given(1, end_of(slots));
    for (double& value : given.elements) value = std::numeric_limits<double>::quiet_NaN();
    for (const FlatSlot& slot : slots) {
      std::fill_n(given.elements.begin() + slot.offset, slot.size, largest);
    }
    const auto first = [&] {
      BothDevices both;
      const Handle gradient = both.matrix(wide(), given);
      std::int64_t found = -2;
      both.run([&](const auto& execution, const auto& at) {
        found = kernels::first_nonfinite(execution, at.vector(gradient), slots);  // the GPU comes last
      });
      return found;
    };
    EXPECT_EQ(first(), -1) << "the largest finite numbers are finite, and outside the slots is no one's business";
    for (std::size_t k = slots.size(); k-- > 0;) {
      if (slots[k].size == 0 || (slots.size() > 10 && k % 250 != 1)) continue;
      const std::int64_t last = slots[k].offset + slots[k].size - 1;
      given.elements[static_cast<std::size_t>(last)] = -std::numeric_limits<double>::infinity();
      EXPECT_EQ(first(), static_cast<std::int64_t>(k));
    }
  }
}

/// What a captured graph of steps does: rates and step counts in the GPU's memory.
class DeviceScalarsCudaKernelsTest : public testing::Test {
 protected:
  void SetUp() override { skip_without(DeviceType::cuda); }

  template <class T>
  static Tensor upload(const Context& gpu, const std::vector<T>& values) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
    return Tensor::from(
        gpu, {bytes}, std::span(reinterpret_cast<const std::uint8_t*>(values.data()), static_cast<std::size_t>(bytes)));
  }
  template <class T>
  static std::vector<T> fetch(const Tensor& tensor) {
    const std::vector<std::uint8_t> bytes = tensor.to_vector<std::uint8_t>();
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  template <class T>
  static T* address(Tensor& tensor) {
    return static_cast<T*>(tensor.mutable_raw());
  }
};

TEST_F(DeviceScalarsCudaKernelsTest, AdamStepsByThem) {
  const Context gpu = Context::cuda();
  const std::vector<FlatSlot> slots = {{0, 1000}, {1024, 300}};
  const Tensor gradient = Tensor::full(gpu, {1400}, Dtype::f32, 0.5);
  Tensor master[2];
  Tensor m[2];
  Tensor v[2];
  for (int way = 0; way < 2; ++way) {
    master[way] = Tensor::full(gpu, {1400}, Dtype::f32, 1);
    m[way] = Tensor::zeros(gpu, {1400}, Dtype::f32);
    v[way] = Tensor::zeros(gpu, {1400}, Dtype::f32);
  }
  Tensor steps = upload<std::int64_t>(gpu, {0, 7});
  Tensor factor = Tensor::full(gpu, {1}, Dtype::f64, 0.25);
  Tensor scalars = upload(gpu, std::vector<kernels::AdamScalars>(2));
  for (int step = 1; step <= 5; ++step) {
    const double rate = 0.01 * step;
    Tensor learning_rate = Tensor::full(gpu, {1}, Dtype::f64, rate);
    const std::vector<kernels::AdamScalars> host = {kernels::adam_scalars(rate, step, 0.25, 0.9, 0.999, 0.01),
                                                    kernels::adam_scalars(rate, step + 7, 0.25, 0.9, 0.999, 0.01)};
    dispatch(gpu, [&](const auto& execution) {
      if constexpr (std::is_same_v<decltype(execution), const CudaExecution&>) {
        kernels::advance_adam(execution, {.progress = {.slots = 2,
                                                       .steps = address<std::int64_t>(steps),
                                                       .learning_rate = address<double>(learning_rate),
                                                       .gradient_factor = address<double>(factor)},
                                          .beta1 = 0.9,
                                          .beta2 = 0.999,
                                          .decoupled_decay = 0.01,
                                          .scalars = address<kernels::AdamScalars>(scalars)});
      }
      for (int way = 0; way < 2; ++way) {
        kernels::AdamStep args{
            .parameters = {.slots = slots, .gradients = vector_of(gradient), .masters = mutable_vector_of(master[way])},
            .m = mutable_vector_of(m[way]),
            .v = mutable_vector_of(v[way]),
            .beta1 = 0.9,
            .beta2 = 0.999,
            .epsilon = 1e-8};
        if (way == 0) args.scalars = host;
        if (way == 1) args.device_scalars = address<kernels::AdamScalars>(scalars);
        kernels::adam_step(execution, args);
      }
    });
    const auto made = fetch<kernels::AdamScalars>(scalars);
    for (std::size_t i = 0; i < 2; ++i) {
      // The GPU's logarithm and exponential may differ from the host's in the last place.
      EXPECT_NEAR(made[i].step_size / host[i].step_size, 1, 1e-14);
      EXPECT_NEAR(made[i].root_factor / host[i].root_factor, 1, 1e-14);
      EXPECT_EQ(made[i].gradient_factor, host[i].gradient_factor);
      EXPECT_EQ(made[i].decay, host[i].decay);
    }
  }
  EXPECT_EQ(fetch<std::int64_t>(steps), (std::vector<std::int64_t>{5, 12}));
  const std::vector<float> by_host = master[0].to_vector<float>();
  const std::vector<float> by_device = master[1].to_vector<float>();
  for (std::size_t i = 0; i < by_host.size(); ++i) EXPECT_NEAR(by_device[i], by_host[i], 1e-7) << i;
  EXPECT_EQ(by_device[1000], 1) << "between the slots";
  EXPECT_LT(by_device[0], 0.95f);
}

TEST_F(DeviceScalarsCudaKernelsTest, SgdStepsByThem) {
  const Context gpu = Context::cuda();
  Tensor gradient = Tensor::full(gpu, {128}, Dtype::f32, 2);
  Tensor master = Tensor::full(gpu, {128}, Dtype::f32, 1);
  Tensor velocity = Tensor::zeros(gpu, {128}, Dtype::f32);
  Tensor steps = upload<std::int64_t>(gpu, {0});
  Tensor factor = Tensor::full(gpu, {1}, Dtype::f64, 0.5);
  Tensor learning_rate = Tensor::full(gpu, {1}, Dtype::f64, 0.25);
  Tensor scalars = upload(gpu, std::vector<kernels::SgdScalars>(1));
  const std::vector<FlatSlot> slots = {{0, 128}};
  for (int step = 0; step < 2; ++step) {
    dispatch(gpu, [&](const auto& execution) {
      if constexpr (std::is_same_v<decltype(execution), const CudaExecution&>) {
        kernels::advance_sgd(execution, {.progress = {.slots = 1,
                                                      .steps = address<std::int64_t>(steps),
                                                      .learning_rate = address<double>(learning_rate),
                                                      .gradient_factor = address<double>(factor)},
                                         .momentum = 0.5,
                                         .dampening = 0.25,
                                         .scalars = address<kernels::SgdScalars>(scalars)});
      }
      kernels::sgd_step(
          execution,
          {.parameters = {.slots = slots, .gradients = vector_of(gradient), .masters = mutable_vector_of(master)},
           .device_scalars = address<kernels::SgdScalars>(scalars),
           .kind = kernels::Momentum::classic,
           .velocity = mutable_vector_of(velocity),
           .momentum = 0.5});
    });
  }
  // g = 1; v = 1, then 0.5 + 0.75; p = 1 - 0.25 (1 + 1.25).
  EXPECT_EQ(master.to_vector<float>()[127], 0.4375f);
  EXPECT_EQ(fetch<std::int64_t>(steps)[0], 2);
}

TEST_F(DeviceScalarsCudaKernelsTest, AFaultStopsTheSteps) {
  const Context gpu = Context::cuda();
  const Tensor logits = Tensor::zeros(gpu, {1, 3}, Dtype::f32);
  const Tensor label = Tensor::full(gpu, {1}, Dtype::i32, 3);
  Tensor loss = Tensor::zeros(gpu, {}, Dtype::f32);
  Tensor gradient = Tensor::full(gpu, {128}, Dtype::f32, 1);
  Tensor master = Tensor::full(gpu, {128}, Dtype::f32, 1);
  Tensor m = Tensor::zeros(gpu, {128}, Dtype::f32);
  Tensor v = Tensor::zeros(gpu, {128}, Dtype::f32);
  const std::vector<FlatSlot> slots = {{0, 128}};
  const std::vector<kernels::AdamScalars> scalars = {{.step_size = 0.5}};
  const kernels::AdamStep args{
      .parameters = {.slots = slots, .gradients = vector_of(gradient), .masters = mutable_vector_of(master)},
      .scalars = scalars,
      .m = mutable_vector_of(m),
      .v = mutable_vector_of(v),
      .epsilon = 1};
  dispatch(gpu, [&](const auto& execution) {
    kernels::softmax_cross_entropy_forward(
        execution, {.loss = {.logits = matrix_of(logits), .labels = vector_of(label)}, .y = mutable_vector_of(loss)});
    kernels::adam_step(execution, args);
  });
  EXPECT_THROW(gpu.synchronize(), ValueError);
  EXPECT_EQ(master.to_vector<float>()[0], 1);
  EXPECT_EQ(m.to_vector<float>()[0], 0);
  dispatch(gpu, [&](const auto& execution) { kernels::adam_step(execution, args); });
  EXPECT_EQ(master.to_vector<float>()[0], 0.75f) << "once the fault was thrown, steps go on";
}

}  // namespace
}  // namespace fusegrad::test
