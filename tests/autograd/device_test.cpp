// What the engine asks of a device: memory, copies, fills, conversions; the same on each.
#include "tests/support/device.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/execution.h>
#include <fusegrad/autograd/narrow.h>
#include <fusegrad/autograd/tensor.h>
#include <fusegrad/autograd/uploads.h>

namespace fusegrad::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

using DeviceMemoryTest = DeviceTest;
INSTANTIATE_TEST_SUITE_P(Each, DeviceMemoryTest, kDevices, device_name);

TEST_P(DeviceMemoryTest, NamesItsDevice) {
  EXPECT_EQ(context().device().type, GetParam());
  EXPECT_THAT(context().device().to_string(), testing::StartsWith(to_string(GetParam())));
}

TEST_P(DeviceMemoryTest, FillsInEveryDtype) {
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::i32, Dtype::u8}) {
    for (const std::int64_t size : {std::int64_t{0}, std::int64_t{1}, std::int64_t{257}, std::int64_t{3000001}}) {
      const Tensor filled = Tensor::full(context(), {size}, dtype, 3);
      detail::visit_any(dtype, [&]<class T>() {
        for (const T element : filled.to_vector<T>()) ASSERT_EQ(static_cast<double>(element), 3) << name_of(dtype);
      });
    }
  }
  EXPECT_THAT(Tensor::zeros(context(), {300}, Dtype::f64).to_vector<double>(), Each(0.0));
}

TEST_P(DeviceMemoryTest, RoundsConversionsOnce) {
  // 1 + 2^-8 + 2^-30 is above the tie between bf16's neighbours 1 and 1 + 2^-7; rounded to float first, it is the tie.
  const std::vector<double> values{1 + 0x1p-8 + 0x1p-30,
                                   -1 - 0x1p-8 - 0x1p-30,
                                   1 + 0x1p-11 + 0x1p-35,
                                   0.1,
                                   1e300,
                                   -1e300,
                                   1e-300,
                                   -1e-300,
                                   -0.0,
                                   65519.99,
                                   65520,
                                   0x1p-25,
                                   0x1.8p-25,
                                   -3.0};
  const Tensor source = Tensor::from(context(), {static_cast<std::int64_t>(values.size())}, values);
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    const Tensor converted = source.to(dtype);
    detail::visit_floating(dtype, [&]<class T>() {
      const std::vector<T> got = converted.to_vector<T>();
      for (std::size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(static_cast<double>(got[i]), static_cast<double>(detail::narrow<T>(values[i])))
            << values[i] << " as " << name_of(dtype);
      }
      EXPECT_TRUE(std::signbit(static_cast<double>(got[8])));
    });
  }
  EXPECT_EQ(static_cast<float>(source.to(Dtype::bf16).to_vector<bf16>()[0]), 1 + 0x1p-7f);
  const Tensor nan = Tensor::full(context(), {1}, Dtype::f64, std::nan(""));
  EXPECT_TRUE(std::isnan(nan.to(Dtype::f16).item()));
}

TEST_P(DeviceMemoryTest, WidensEveryDtype) {
  const Tensor labels = Tensor::from<std::int32_t>(context(), {3}, {-7, 0, 2147483647});
  EXPECT_THAT(labels.to(Dtype::f64).to_vector<double>(), ElementsAre(-7, 0, 2147483647));
  const Tensor bytes = Tensor::from<std::uint8_t>(context(), {2}, {0, 255});
  EXPECT_THAT(bytes.to(Dtype::f32).to_vector<float>(), ElementsAre(0, 255));
}

TEST_P(DeviceMemoryTest, CopiesWithinAndBetweenContexts) {
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const Tensor source = Tensor::from(context(), {6}, values);
  EXPECT_EQ(source.clone().to_vector<float>(), values);
  for (const Context& other : {context_on(GetParam()), Context::cpu({.threads = 1})}) {
    const Tensor moved = source.to(other);
    EXPECT_EQ(moved.to_vector<float>(), values);
    EXPECT_EQ(moved.to(context()).to_vector<float>(), values);
  }
  EXPECT_EQ(source.rows(4, 5).item(), 5);
}

TEST_P(DeviceMemoryTest, CopiesBetweenOverlappingRows) {
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  Tensor down = Tensor::from(context(), {6}, values);
  down.rows(0, 5).copy_from(down.rows(1, 6));
  EXPECT_THAT(down.to_vector<float>(), ElementsAre(2, 3, 4, 5, 6, 6));
  Tensor up = Tensor::from(context(), {6}, values);
  up.rows(1, 6).copy_from(up.rows(0, 5));
  EXPECT_THAT(up.to_vector<float>(), ElementsAre(1, 1, 2, 3, 4, 5));
}

TEST_P(DeviceMemoryTest, SaysWhatIsMissingAndGoesOn) {
  const Tensor held = Tensor::full(context(), {1000}, Dtype::f32, 2);
  try {
    Tensor::empty(context(), {std::int64_t{1} << 50}, Dtype::f64);
    FAIL() << "a petabyte was allocated";
  } catch (const OutOfMemoryError& error) {
    EXPECT_THAT(error.what(), HasSubstr("9007199254740992 bytes were asked for"));
    EXPECT_THAT(error.what(), HasSubstr("held by live tensors"));
    EXPECT_THAT(error.what(), HasSubstr(context().device().to_string()));
  }
  EXPECT_THAT(held.to_vector<float>(), Each(2.0f));
  EXPECT_THAT(Tensor::full(context(), {1000}, Dtype::f32, 3).to_vector<float>(), Each(3.0f));
}

TEST_P(DeviceMemoryTest, ReusesBlocksAndGivesThemBack) {
  const std::int64_t before = context().memory().in_use;
  Tensor::zeros(context(), {5000}, Dtype::f32);
  const std::int64_t allocations = context().memory().system_allocations;
  for (int i = 0; i < 10; ++i) Tensor::full(context(), {5000}, Dtype::f32, i);
  EXPECT_EQ(context().memory().system_allocations, allocations);
  EXPECT_GE(context().memory().cached, 20000);
  context().release_cached_memory();
  EXPECT_EQ(context().memory().cached, 0);
  EXPECT_EQ(context().memory().in_use, before);
  EXPECT_THAT(Tensor::full(context(), {5000}, Dtype::f32, 7).to_vector<float>(), Each(7.0f));
}

TEST_P(DeviceMemoryTest, UploadsWhatWasStaged) {
  constexpr std::int64_t kCount = 3000;
  constexpr std::size_t kBytes = kCount * sizeof(float);
  for (const int slots : {1, 2, 3}) {
    std::vector<Tensor> first;
    std::vector<Tensor> second;
    const auto uploads = context().state().backend().uploads(2 * kBytes, slots);
    uploads->join();  // nothing to wait for
    for (int round = 0; round < 7; ++round) {
      auto* staged = reinterpret_cast<float*>(uploads->stage());
      std::fill_n(staged, kCount, static_cast<float>(round));
      std::fill_n(staged + kCount, kCount, static_cast<float>(round) + 0.5f);
      for (auto* tensors : {&first, &second}) tensors->push_back(Tensor::full(context(), {kCount}, Dtype::f32, -1));
      uploads->start({{.to = first.back().mutable_raw(), .offset = 0, .bytes = kBytes},
                      {.to = second.back().mutable_raw(), .offset = kBytes, .bytes = kBytes},
                      {.to = second.back().mutable_raw(), .offset = 0, .bytes = 0}});
    }
    uploads->join();
    for (std::size_t round = 0; round < first.size(); ++round) {
      EXPECT_THAT(first[round].to_vector<float>(), Each(static_cast<float>(round)));
      EXPECT_THAT(second[round].to_vector<float>(), Each(static_cast<float>(round) + 0.5f));
    }
    // They end with a copy under way, before its destination does.
    uploads->stage();
    uploads->start({{.to = first[0].mutable_raw(), .offset = 0, .bytes = kBytes}});
  }
}

TEST(ContextOptionsTest, TakeTheStrategyFromTheEnvironment) {
  EXPECT_EQ(Context::cpu().strategy(), Strategy::automatic);
  ASSERT_EQ(setenv("FUSEGRAD_STRATEGY", "split", 1), 0);
  EXPECT_EQ(Context::cpu().strategy(), Strategy::split);
  EXPECT_EQ(Context::cpu({.strategy = Strategy::pass}).strategy(), Strategy::pass);
  ASSERT_EQ(setenv("FUSEGRAD_STRATEGY", "best", 1), 0);
  try {
    Context::cpu();
    ADD_FAILURE() << "FUSEGRAD_STRATEGY=best was accepted";
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("FUSEGRAD_STRATEGY"));
    EXPECT_THAT(error.what(), HasSubstr("\"best\""));
  }
  ASSERT_EQ(unsetenv("FUSEGRAD_STRATEGY"), 0);
}

TEST(ContextOptionsTest, TakeTheProductLibraryFromTheEnvironment) {
  const char* outside = std::getenv("FUSEGRAD_ONEDNN");
  const std::string before = outside ? outside : "";
  const auto set = [](const char* value) { ASSERT_EQ(setenv("FUSEGRAD_ONEDNN", value, 1), 0); };
  set("");
  EXPECT_EQ(Context::cpu().products(), kWithOnednn ? ProductLibrary::onednn : ProductLibrary::eigen);
  EXPECT_EQ(Context::cpu({.products = ProductLibrary::eigen}).products(), ProductLibrary::eigen);
  set("off");
  EXPECT_EQ(Context::cpu().products(), ProductLibrary::eigen);
  const auto message_of = [](const ContextOptions& options) -> std::string {
    try {
      Context::cpu(options);
      return "accepted";
    } catch (const ValueError& error) {
      return error.what();
    }
  };
  EXPECT_THAT(message_of({.products = ProductLibrary::onednn}), HasSubstr(kWithOnednn ? "accepted" : "without oneDNN"));
  set("on");
  EXPECT_THAT(message_of({}), HasSubstr(kWithOnednn ? "accepted" : "FUSEGRAD_ONEDNN is \"on\", but"));
  set("yes");
  EXPECT_THAT(message_of({}), HasSubstr("FUSEGRAD_ONEDNN must be \"on\" or \"off\", got \"yes\""));
  set(before.c_str());
}

TEST(ContextOptionsTest, AreKeptByTheContext) {
  const Context plain = Context::cpu();
  EXPECT_EQ(plain.math(), MathMode::fp32);
  EXPECT_FALSE(plain.deterministic());
  const Context chosen = Context::cpu({.math = MathMode::tf32, .deterministic = true});
  EXPECT_EQ(chosen.math(), MathMode::tf32);
  EXPECT_TRUE(chosen.deterministic());
}

TEST(ContextOptionsTest, BestIsTheGpuWhereThereIsOne) {
  EXPECT_EQ(Context::best().device().type, has_gpu() ? DeviceType::cuda : DeviceType::cpu);
}

TEST(ContextOptionsTest, RefuseAGpuThatIsNotThere) {
  try {
    Context::cuda({.device = 4711});
    FAIL() << "GPU 4711 was found";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), has_gpu() ? HasSubstr("there is no GPU 4711; this machine has") : HasSubstr("context: "));
  }
  if (has_gpu()) {
    EXPECT_THROW(Context::cuda({.device = -1}), DeviceError);
  }
}

}  // namespace
}  // namespace fusegrad::test
