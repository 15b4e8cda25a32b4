#include <limits>
#include <numeric>

#include "tests/optim/given_gradients.h"
#include "tests/support/guarded.h"

#include <fusegrad/optim/optimizer_kernels.h>

namespace fusegrad {
namespace {

using namespace fusegrad::test;

/// Slots with holes between them that belong to no one.
const std::vector<kernels::FlatSlot> kSlots = {{128, 3}, {256, 0}, {256, 200}, {16256, 256}, {40000, 9000}};
constexpr std::int64_t kFlatSize = 50000;

bool in_a_slot(std::int64_t i) {
  return std::ranges::any_of(
      kSlots, [&](const kernels::FlatSlot& slot) { return i >= slot.offset && i < slot.offset + slot.size; });
}

Values row(const std::vector<double>& elements) {
  Values values(1, static_cast<std::int64_t>(elements.size()));
  values.elements = elements;
  return values;
}

class OptimizerKernelsTest : public EachDtype {
 protected:
  detail::ThreadPool pool_{2};
  CpuExecution execution_{pool_};
};
FUSEGRAD_EACH_DTYPE(OptimizerKernelsTest);

TEST_P(OptimizerKernelsTest, WriteTheSlotsAndNothingElse) {
  const Dtype master_dtype = wide();
  const bool rounds = master_dtype != dtype();
  for (const bool adam : {false, true}) {
    GuardedMatrix master(master_dtype, row(std::vector<double>(kFlatSize, 1)));
    GuardedMatrix value(rounds ? dtype() : Dtype::f32, 1, kFlatSize);  // poisoned
    GuardedMatrix m(master_dtype, row(std::vector<double>(kFlatSize, 0)));
    GuardedMatrix v(master_dtype, row(std::vector<double>(kFlatSize, 0)));
    std::vector<double> given(kFlatSize, std::numeric_limits<double>::quiet_NaN());
    for (std::int64_t i = 0; i < kFlatSize; ++i) {
      if (in_a_slot(i)) given[static_cast<std::size_t>(i)] = 0.5;
    }
    const GuardedMatrix gradient(master_dtype, row(given));
    const kernels::FlatParameters parameters{.slots = kSlots,
                                             .gradients = gradient.vector(),
                                             .masters = master.vector(),
                                             .values = rounds ? value.vector() : Vector{}};
    if (adam) {
      const std::vector<kernels::AdamScalars> scalars(kSlots.size(),
                                                      {.step_size = 5, .root_factor = 2, .decay = 0.125});
      kernels::adam_step(execution_, {.parameters = parameters,
                                      .scalars = scalars,
                                      .m = m.vector(),
                                      .v = v.vector(),
                                      .beta1 = 0.5,
                                      .beta2 = 0.75,
                                      .epsilon = 0.5});
    } else {
      const std::vector<kernels::SgdScalars> scalars(kSlots.size(), {.learning_rate = 1});
      kernels::sgd_step(execution_, {.parameters = parameters,
                                     .scalars = scalars,
                                     .kind = kernels::Momentum::classic,
                                     .velocity = m.vector(),
                                     .momentum = 0.5});
    }
    // Adam: m = 0.25, v = 0.0625, so p = 1 - (0.125 + 5 * 0.25 / (2 * 0.25 + 0.5)) = -0.375.
    const double expected = adam ? -0.375 : 0.5;
    const Values masters = master.values();
    const Values values = value.values();
    for (std::int64_t i = 0; i < kFlatSize; ++i) {
      ASSERT_EQ(masters.at(0, i), in_a_slot(i) ? expected : 1) << i;
      if (rounds && in_a_slot(i)) {
        ASSERT_EQ(values.at(0, i), expected) << i;
      } else {
        ASSERT_TRUE(std::isnan(values.at(0, i))) << i;
      }
    }
    EXPECT_TRUE(master.intact());
    EXPECT_TRUE(value.intact());
    EXPECT_TRUE(m.intact());
    EXPECT_TRUE(v.intact());
  }
}

TEST_P(OptimizerKernelsTest, FindTheFirstNonFiniteSlot) {
  const Dtype master_dtype = wide();
  const double largest =
      master_dtype == Dtype::f64 ? std::numeric_limits<double>::max() : double{std::numeric_limits<float>::max()};
  std::vector<double> given(kFlatSize, largest);
  for (std::int64_t i = 0; i < kFlatSize; ++i) {
    if (!in_a_slot(i)) given[static_cast<std::size_t>(i)] = std::numeric_limits<double>::quiet_NaN();
  }
  const auto first = [&] {
    return kernels::first_nonfinite(execution_, GuardedMatrix(master_dtype, row(given)).vector(), kSlots);
  };
  EXPECT_EQ(first(), -1) << "the largest finite numbers are finite, and outside the slots is no one's business";
  for (std::size_t k = kSlots.size(); k-- > 0;) {
    if (kSlots[k].size == 0) continue;
    for (const std::int64_t at : {kSlots[k].offset, kSlots[k].offset + kSlots[k].size - 1}) {
      given[static_cast<std::size_t>(at)] = -std::numeric_limits<double>::infinity();
      EXPECT_EQ(first(), static_cast<std::int64_t>(k)) << at;
    }
  }
}

}  // namespace
}  // namespace fusegrad
