// What a tape records, how long a Var lives, and what may be read when.
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/autograd/tape_fixture.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/tape.h>
#include <fusegrad/ops/arithmetic.h>
#include <fusegrad/ops/mse_loss.h>
#include <fusegrad/ops/reduction.h>
#include <fusegrad/ops/reshape.h>

namespace fusegrad {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class TapeTest : public test::TapeFixture {
 protected:
  /// Every use of a Var is a StateError.
  void expect_unusable(Tape& tape, const Var& var) const {
    EXPECT_THROW(var.value(), StateError);
    EXPECT_THROW(var.item(), StateError);
    EXPECT_THROW((void)var.needs_gradient(), StateError);
    expect_foreign(tape, var);
  }

  /// Every use of a Var on `tape` is a StateError and records nothing.
  void expect_foreign(Tape& tape, const Var& var) const {
    const Var own = tape.variable(row({1, 2}));
    const std::int64_t size = tape.size();
    EXPECT_THROW(add(own, var), StateError);
    EXPECT_THROW(tape.backward(var, row({1, 1})), StateError);
    EXPECT_THROW(tape.gradient(var), StateError);
    EXPECT_THROW((void)tape.has_gradient(var), StateError);
    EXPECT_THROW(tape.keep(var), StateError);
    EXPECT_THROW(tape.retain_gradient(var), StateError);
    EXPECT_THROW(tape.on_gradient(var, [](const Tensor&) {}), StateError);
    EXPECT_EQ(tape.size(), size);
  }
};

TEST_F(TapeTest, RecordsOneNodeALeafAndOneAnOp) {
  Tape tape(context_);
  EXPECT_EQ(tape.size(), 0);
  const Var x = tape.variable(row({1, 2}));
  const Var c = tape.input(row({3, 4}));
  const Var y = mul(x, c);
  EXPECT_EQ(tape.size(), 3);
  EXPECT_TRUE(x.needs_gradient());
  EXPECT_FALSE(c.needs_gradient());
  EXPECT_TRUE(y.needs_gradient());
  EXPECT_FALSE(mul(c, c).needs_gradient());
  EXPECT_THAT(tape.explain(), HasSubstr("mul(0, 1) f32 [2]"));
}

TEST_F(TapeTest, LeavesAreFloatingPointAndOfTheTapesContext) {
  Tape tape(context_);
  const Context other = Context::cpu({.threads = 1});
  EXPECT_THROW(tape.input(Tensor::zeros(context_, {2}, Dtype::i32)), DtypeError);
  EXPECT_THROW(tape.variable(Tensor::zeros(context_, {2}, Dtype::u8)), DtypeError);
  EXPECT_THROW(tape.variable(Tensor()), DtypeError);
  EXPECT_THROW(tape.input(Tensor::zeros(other, {2}, Dtype::f32)), DeviceError);
  ParameterSet set(other);
  const Parameter foreign = set.add("p", {1}, [](std::span<float>) {});
  EXPECT_THROW(tape.parameter(foreign), DeviceError);
  EXPECT_THROW(tape.parameter(Parameter()), StateError);
  EXPECT_EQ(tape.size(), 0);
}

TEST_F(TapeTest, AParameterIsOneLeafHoweverOftenItIsUsed) {
  ParameterSet set(context_);
  const Parameter p = set.add("p", {2}, [](std::span<float> v) { v[0] = 1, v[1] = 2; });
  const Parameter q = set.add("q", {2}, [](std::span<float> v) { v[0] = 3, v[1] = 4; });
  Tape tape(context_);
  tape.parameter(p);
  tape.parameter(q);
  EXPECT_EQ(values(tape.parameter(p).value()), (std::vector<float>{1, 2}));
  EXPECT_EQ(values(tape.parameter(q).value()), (std::vector<float>{3, 4}));
  EXPECT_EQ(tape.size(), 2);
  p.freeze();
  EXPECT_FALSE(tape.parameter(p).needs_gradient()) << "a parameter that was frozen meanwhile is another leaf";
  EXPECT_EQ(tape.size(), 3);
}

TEST_F(TapeTest, AnEmptyVarIsRefused) {
  Tape tape(context_);
  EXPECT_FALSE(Var().defined());
  expect_unusable(tape, Var());
}

TEST_F(TapeTest, AVarIsStaleAfterReset) {
  Tape tape(context_);
  const Var x = tape.variable(row({1, 2}));
  const Var y = scale(x, 2);
  tape.reset();
  EXPECT_EQ(tape.size(), 0);
  EXPECT_THAT([&] { (void)y.value(); }, ThrowsMessage<StateError>(HasSubstr("the Var is stale")));
  expect_unusable(tape, x);
  expect_unusable(tape, y);
}

TEST_F(TapeTest, AVarIsStaleWhenItsTapeIsGoneEvenIfTheNextTapeUsesItsStorage) {
  std::optional<Tape> tape;
  tape.emplace(context_);
  const Var x = tape->variable(row({1, 2}));
  tape.reset();
  EXPECT_THROW(x.value(), StateError);
  tape.emplace(context_);
  const Var fresh = tape->variable(row({5, 6}));
  expect_unusable(*tape, x);
  EXPECT_EQ(values(fresh.value()), (std::vector<float>{5, 6}));
}

TEST_F(TapeTest, AVarMayOutliveItsContext) {
  Var x;
  {
    const Context context = Context::cpu({.threads = 1});
    Tape tape(context);
    x = tape.variable(Tensor::zeros(context, {1000}, Dtype::f32));
  }
  EXPECT_THROW(x.value(), StateError);
}

TEST_F(TapeTest, AVarOfAnotherTapeIsRefused) {
  Tape tape(context_);
  Tape other(context_);
  const Var x = other.variable(row({1, 2}));
  EXPECT_THAT(
      [&] {
        add(tape.variable(row({1, 2})), x);
      },
      ThrowsMessage<StateError>(HasSubstr("belongs to another tape")));
  expect_foreign(tape, x);
  EXPECT_EQ(values(x.value()), (std::vector<float>{1, 2}));
}

TEST_F(TapeTest, TapesOfOneContextAreIndependent) {
  Tape outer(context_);
  const Var x = outer.variable(row({1, 2}));
  const Var y = scale(x, 3);
  {
    Tape inner(context_);
    const Var a = inner.variable(row({4}));
    inner.backward(scale(a, 5));
    EXPECT_EQ(inner.gradient(a).item(), 5);
  }
  outer.backward(y, row({1, 1}));
  EXPECT_EQ(values(outer.gradient(x)), (std::vector<float>{3, 3}));
}

TEST_F(TapeTest, BackwardReleasesValuesThatNobodyKept) {
  Tape tape(context_);
  ParameterSet set(context_);
  const Parameter p = set.add("p", {2}, [](std::span<float> v) { v[0] = 1, v[1] = 1; });
  const Var x = tape.variable(row({1, 2}));
  const Var c = tape.input(row({3, 4}));
  const Var w = tape.parameter(p);
  const Var hidden = mul(x, c);
  const Var kept = scale(hidden, 2);
  const Var loss = sum(mul(kept, w));
  tape.keep(kept);
  EXPECT_EQ(values(hidden.value()), (std::vector<float>{3, 8})) << "readable until backward";
  tape.backward(loss);
  EXPECT_THAT([&] { (void)hidden.value(); },
              ThrowsMessage<StateError>("value: the value of mul was released by backward; name it with tape.keep() "
                                        "before"));
  EXPECT_EQ(values(kept.value()), (std::vector<float>{6, 16}));
  EXPECT_EQ(loss.item(), 22);
  EXPECT_EQ(values(x.value()), (std::vector<float>{1, 2}));
  EXPECT_EQ(values(c.value()), (std::vector<float>{3, 4}));
  EXPECT_EQ(values(w.value()), (std::vector<float>{1, 1}));
  EXPECT_EQ(tape.saved_bytes(), 0);
  EXPECT_THROW(tape.keep(kept), StateError) << "too late";
}

TEST_F(TapeTest, ABackwardThatKeepsReleasesNothing) {
  Tape tape(context_);
  const Var x = tape.variable(row({1, 2}));
  const Var hidden = mul(x, x);
  const Var loss = sum(hidden);
  const std::int64_t saved = tape.saved_bytes();
  tape.backward(loss, {.keep = true});
  EXPECT_EQ(values(hidden.value()), (std::vector<float>{1, 4}));
  EXPECT_EQ(tape.saved_bytes(), saved);
  const Var more = sum(scale(hidden, 2));  // and recording may go on
  tape.backward(more);
  EXPECT_EQ(values(tape.gradient(x)), (std::vector<float>{2 + 4, 4 + 8}));
  EXPECT_THROW(hidden.value(), StateError);
}

TEST_F(TapeTest, ASpentTapeRecordsNothingUntilItIsReset) {
  Tape tape(context_);
  const Var x = tape.variable(row({1, 2}));
  const Var y = sum(x);
  tape.backward(y);
  EXPECT_THROW(tape.variable(row({1})), StateError);
  EXPECT_THROW(tape.input(row({1})), StateError);
  EXPECT_THAT([&] { scale(x, 2); }, ThrowsMessage<StateError>(HasSubstr("this tape was used by backward")));
  EXPECT_EQ(tape.size(), 2);
  tape.reset();
  const Var z = tape.variable(row({1, 2}));
  tape.backward(sum(scale(z, 2)));
  EXPECT_EQ(values(tape.gradient(z)), (std::vector<float>{2, 2}));
}

TEST_F(TapeTest, AnInferenceTapeRecordsNothing) {
  ParameterSet set(context_);
  const Parameter p = set.add("p", {2}, [](std::span<float> v) { v[0] = 1, v[1] = 2; });
  Tape tape(context_, Mode::inference);
  const Var x = tape.variable(row({3, 4}));
  const Var y = sum(mul(x, tape.parameter(p)) + reshape(x, {2}));
  const Var loss = mse_loss(x, row({1, 1}));
  EXPECT_EQ(y.item(), 18);
  EXPECT_EQ(loss.item(), 6.5);
  EXPECT_EQ(tape.size(), 0);
  EXPECT_EQ(tape.saved_bytes(), 0);
  EXPECT_FALSE(x.needs_gradient());
  EXPECT_FALSE(y.needs_gradient());
  EXPECT_THAT([&] { tape.backward(y); }, ThrowsMessage<StateError>("backward: an inference tape records nothing"));
  EXPECT_THROW(tape.gradient(x), StateError);
  EXPECT_THROW(tape.retain_gradient(y), StateError);
  tape.keep(y);  // every value is kept anyway
  EXPECT_EQ(y.item(), 18);
  tape.reset();
  EXPECT_THROW(y.item(), StateError);
}

TEST_F(TapeTest, InferenceAndTrainingGiveTheSameBits) {
  const auto run = [&](Mode mode) {
    Tape tape(context_, mode);
    const Var x = tape.variable(row({0.1f, 0.7f, -3.3f}));
    return mse_loss(mul(x, x) - 0.3 * x, row({0.2f, 0.4f, 0.6f})).item();
  };
  EXPECT_EQ(run(Mode::inference), run(Mode::training));
}

TEST_F(TapeTest, ADeepChainNeedsNoDeepStack) {
  constexpr int kNodes = 100000;
  Tape tape(context_);
  const Var x = tape.variable(row({1}));
  {
    Var y = x;
    for (int i = 0; i < kNodes; ++i) y = i % 2 == 0 ? -y : y + x;
    EXPECT_EQ(tape.size(), kNodes + 1);
    tape.backward(y);
    // y -> x - y each two nodes: the value stays 0 or 1, and so does the derivative.
    EXPECT_EQ(y.item(), 1);
  }
  EXPECT_EQ(tape.gradient(x).item(), 1);
  tape.reset();
  EXPECT_EQ(tape.size(), 0);
}

}  // namespace
}  // namespace fusegrad
