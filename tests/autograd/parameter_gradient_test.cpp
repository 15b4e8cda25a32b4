// The two states of a parameter's gradient, freezing, and the loss scale.
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/autograd/tape_fixture.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/ops/arithmetic.h>
#include <fusegrad/ops/reduction.h>

namespace fusegrad {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

class ParameterGradientTest : public test::TapeFixture {};

TEST_F(ParameterGradientTest, BackwardWritesAnEmptyGradientAndAddsToAValidOne) {
  ParameterSet set(context_);
  const Parameter p = add_parameter(set, "p", {1, 2});
  const Parameter unused = add_parameter(set, "unused", {1});
  const auto run = [&] {
    Tape tape(context_);
    const Var w = tape.parameter(p);
    tape.backward(sum(mul(w, w)));
  };
  EXPECT_FALSE(p.has_gradient());
  EXPECT_THROW(p.gradient(), StateError);
  // What an empty gradient's memory holds must not matter.
  p.value();
  run();
  EXPECT_THAT(values(p.gradient()), ElementsAre(2, 4));
  run();
  EXPECT_THAT(values(p.gradient()), ElementsAre(4, 8));
  EXPECT_FALSE(unused.has_gradient());
  Tensor held = p.gradient();
  held.copy_from(row({std::numeric_limits<float>::quiet_NaN(), 9}));
  set.clear_gradients();
  EXPECT_FALSE(p.has_gradient());
  run();
  EXPECT_THAT(values(p.gradient()), ElementsAre(2, 4)) << "written, not added to what was left";
}

TEST_F(ParameterGradientTest, AFrozenParameterGetsNoGradientAndSavesNothing) {
  ParameterSet set(context_);
  const Parameter p = add_parameter(set, "p", {1, 2});
  p.freeze();
  Tape tape(context_);
  const Var x = tape.variable(row({3, 4}));
  const Var y = mul(x, tape.parameter(p));
  EXPECT_EQ(tape.saved_bytes(), 8) << "the parameter's value, not x";
  tape.backward(y, row({1, 1}));
  EXPECT_FALSE(p.has_gradient());
  EXPECT_THAT(values(tape.gradient(x)), ElementsAre(1, 2));
  p.unfreeze();
  Tape next(context_);
  next.backward(sum(next.parameter(p)));
  EXPECT_THAT(values(p.gradient()), ElementsAre(1, 1));
}

TEST_F(ParameterGradientTest, ASetThatWasMovedIsStillAHandleToItsParameters) {
  ParameterSet set(context_);
  add_parameter(set, "p", {1, 2});
  const ParameterSet moved = std::move(set);
  EXPECT_EQ(set, moved);  // NOLINT(bugprone-use-after-move): what it is about
  EXPECT_EQ(set.context(), context_);
  Context context = context_;
  const Context other = std::move(context);
  EXPECT_EQ(context.threads(), other.threads());  // NOLINT(bugprone-use-after-move)
}

TEST_F(ParameterGradientTest, ASetHoldsNoMoreThanMemoryCanAddress) {
  ParameterSet set(context_);
  add_parameter(set, "p", {1});
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(set.add("huge", {std::int64_t{1} << 59}, [](std::span<float>) {}), ShapeError);
  }
  EXPECT_EQ(set.size(), 1u);
  EXPECT_THAT(values(set["p"].value()), ElementsAre(1));
}

TEST_F(ParameterGradientTest, TheLossScaleMultipliesEveryGradient) {
  ParameterSet set(context_, Dtype::f16);
  const Parameter p = set.add("p", {2}, [](std::span<float> v) { v[0] = 1, v[1] = 2; });
  const auto run = [&](double loss_scale) {
    Tape tape(context_);
    const Var w = tape.parameter(p);
    tape.backward(sum(mul(w, w)), {.loss_scale = loss_scale});
  };
  run(1024);
  EXPECT_THAT(p.gradient().to_vector<float>(), ElementsAre(2048, 4096));
  EXPECT_THAT([&] { run(512); },
              ThrowsMessage<StateError>(HasSubstr("the gradient of \"p\" was made with loss scale 1024, not 512")));
  EXPECT_THAT(p.gradient().to_vector<float>(), ElementsAre(2048, 4096));
  run(1024);
  EXPECT_THAT(p.gradient().to_vector<float>(), ElementsAre(4096, 8192));
  p.clear_gradient();
  run(512);
  EXPECT_THAT(p.gradient().to_vector<float>(), ElementsAre(1024, 2048));
}

TEST_F(ParameterGradientTest, ALossScaleIsAPowerOfTwo) {
  Tape tape(context_);
  const Var x = tape.variable(row({1}));
  const Var y = scale(x, 3);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {0.0, -2.0, 3.0, 0x1p127, 0x1p-127, infinity, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(tape.backward(y, {.loss_scale = bad}), ValueError) << bad;
  }
  EXPECT_FALSE(tape.has_gradient(x));
  tape.backward(y, {.loss_scale = 0x1p-3});
  EXPECT_EQ(tape.gradient(x).item(), 0.375);

  Tape half(context_);
  const Var z = scale(half.variable(Tensor::full(context_, {}, Dtype::f16, 1)), 3);
  for (const double bad : {0x1p16, 0x1p-25}) {
    EXPECT_THROW(half.backward(z, {.loss_scale = bad}), ValueError) << "f16 does not hold " << bad;
  }
}

}  // namespace
}  // namespace fusegrad
