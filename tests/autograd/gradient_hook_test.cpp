// Retained gradients and hooks, and what a hook that throws leaves behind.
#include <stdexcept>
#include <string>
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

class GradientHookTest : public test::TapeFixture {};

TEST_F(GradientHookTest, ARetainedGradientIsComplete) {
  Tape tape(context_);
  const Var x = tape.variable(row({1, 2}));
  const Var h = scale(x, 2);
  const Var y = mul(h, h) + h;
  EXPECT_THROW(tape.gradient(h), StateError) << "not named";
  tape.retain_gradient(h);
  tape.retain_gradient(y);
  EXPECT_THROW(tape.gradient(h), StateError) << "backward has not run";
  EXPECT_FALSE(tape.has_gradient(h));
  tape.backward(y, row({1, 10}));
  EXPECT_THAT(values(tape.gradient(h)), ElementsAre(5, 90));
  EXPECT_THAT(values(tape.gradient(y)), ElementsAre(1, 10));
  EXPECT_THAT(values(tape.gradient(x)), ElementsAre(10, 180));
}

TEST_F(GradientHookTest, HooksSeeCompleteGradientsInReverseOrder) {
  std::vector<std::string> order;
  const auto note = [&](std::string name) {
    return [&order, name](const Tensor& gradient) {
      order.push_back(name + std::to_string(static_cast<int>(gradient.item())));
    };
  };
  ParameterSet set(context_);
  const Parameter p = add_parameter(set, "p", {5});
  Tape tape(context_);
  const Var x = tape.variable(row({3}));
  const Var w = tape.parameter(p);
  const Var h = mul(x, w);
  const Var y = mul(h, h) + h;
  tape.on_gradient(x, note("x"));
  tape.on_gradient(h, note("h"));
  tape.on_gradient(h, note("h again "));
  tape.on_gradient(y, note("y"));
  tape.on_gradient(w, note("w"));
  tape.backward(y);
  EXPECT_THAT(order, ElementsAre("y1", "h31", "h again 31", "w93", "x155"));
}

TEST_F(GradientHookTest, AHookOfAParameterSeesAllItsUses) {
  ParameterSet set(context_);
  const Parameter p = add_parameter(set, "p", {5});
  std::vector<double> seen;
  Tape tape(context_);
  const Var x = tape.variable(row({3}));
  const Var once = mul(x, tape.parameter(p));
  const Var again = tape.parameter(p);
  tape.on_gradient(again, [&](const Tensor& gradient) { seen.push_back(gradient.item()); });
  tape.backward(mul(once, again));  // x p^2
  EXPECT_THAT(seen, ElementsAre(30));
}

TEST_F(GradientHookTest, AHookMayHoldWhatItSaw) {
  Tensor held;
  Tape tape(context_);
  const Var a = tape.variable(row({1, 2}));
  const Var y = add(a, a);
  tape.on_gradient(y, [&](const Tensor& gradient) { held = gradient; });
  tape.backward(y, row({1, 10}), {.keep = true});
  tape.backward(y, row({7, 7}));
  EXPECT_THAT(values(held), ElementsAre(7, 7));
  EXPECT_THAT(values(tape.gradient(a)), ElementsAre(16, 34));
}

TEST_F(GradientHookTest, AThrowingHookLeavesNoHalfGradients) {
  ParameterSet set(context_);
  const Parameter late = add_parameter(set, "late", {2});
  const Parameter early = add_parameter(set, "early", {3});
  const Parameter elsewhere = add_parameter(set, "elsewhere", {4});
  {
    Tape tape(context_);
    tape.backward(sum(tape.parameter(elsewhere)) + sum(tape.parameter(late)));
  }
  Tape tape(context_);
  const Var x = tape.variable(row({5}));
  const Var h = mul(x, tape.parameter(early));
  const Var y = mul(h, tape.parameter(late));
  tape.retain_gradient(h);
  tape.on_gradient(h, [](const Tensor&) { throw std::runtime_error("the hook's own"); });
  EXPECT_THAT([&] { tape.backward(y, {.keep = true}); }, ThrowsMessage<std::runtime_error>("the hook's own"));
  EXPECT_FALSE(late.has_gradient()) << "it was written before the hook ran";
  EXPECT_FALSE(early.has_gradient());
  EXPECT_TRUE(elsewhere.has_gradient()) << "this backward did not reach it";
  EXPECT_FALSE(tape.has_gradient(x));
  EXPECT_FALSE(tape.has_gradient(h));
  EXPECT_THROW(tape.backward(y), StateError) << "the tape is spent";
  EXPECT_THROW(scale(x, 2), StateError);
  tape.reset();
  const Var again = tape.variable(row({5}));
  tape.backward(scale(again, 2));
  EXPECT_EQ(tape.gradient(again).item(), 2);
}

TEST_F(GradientHookTest, AHookMayNotChangeTheTape) {
  const auto backward_with = [&](auto&& act) {
    Tape tape(context_);
    const Var x = tape.variable(row({1}));
    const Var y = scale(x, 2);
    tape.on_gradient(y, [&](const Tensor&) { act(tape, x, y); });
    EXPECT_THROW(tape.backward(y), StateError);
    EXPECT_FALSE(tape.has_gradient(x));
  };
  backward_with([](Tape&, const Var& x, const Var&) { scale(x, 3); });
  backward_with([&](Tape& tape, const Var&, const Var&) { tape.variable(row({1})); });
  backward_with([](Tape& tape, const Var&, const Var& y) { tape.backward(y); });
  backward_with([](Tape& tape, const Var&, const Var& y) { tape.keep(y); });
  backward_with([](Tape& tape, const Var& x, const Var&) { tape.on_gradient(x, [](const Tensor&) {}); });
  backward_with([](Tape& tape, const Var&, const Var&) { tape.reset(); });
}

TEST_F(GradientHookTest, AHookMayNotChangeWhatBackwardHasYetToRead) {
  ParameterSet set(context_);
  const Parameter p = add_parameter(set, "p", {5});
  const auto step = [&](const Tensor&) { p.assign(row({100})); };
  Tape tape(context_);
  const Var x = tape.variable(row({3}));
  const Var h = mul(x, tape.parameter(p));
  tape.on_gradient(h, step);
  EXPECT_THAT([&] { tape.backward(mul(h, tape.parameter(p))); },
              ThrowsMessage<StateError>(HasSubstr("that mul (node 2) saved was changed while backward ran")));
  EXPECT_FALSE(tape.has_gradient(x));
  EXPECT_FALSE(p.has_gradient());

  p.assign(row({5}));
  tape.reset();
  const Var again = tape.variable(row({3}));
  const Var w = tape.parameter(p);
  tape.on_gradient(w, step);  // when its turn comes, all that read it have run
  tape.backward(mul(mul(again, w), w));
  EXPECT_EQ(tape.gradient(again).item(), 25);
  EXPECT_EQ(p.gradient().item(), 30);
}

TEST_F(GradientHookTest, AHookNeedsAFunctionAndAValueThatGetsAGradient) {
  Tape tape(context_);
  const Var x = tape.variable(row({1}));
  const Var c = tape.input(row({1}));
  EXPECT_THROW(tape.on_gradient(x, nullptr), ValueError);
  EXPECT_THROW(tape.on_gradient(c, [](const Tensor&) {}), StateError);
  EXPECT_THROW(tape.retain_gradient(c), StateError);
}

}  // namespace
}  // namespace fusegrad
