// The reverse sweep: seeds, contributions, repeated backward, and values that changed in between.
#include <cstdint>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/autograd/tape_fixture.h"

#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/op.h>
#include <fusegrad/ops/activation.h>
#include <fusegrad/ops/arithmetic.h>
#include <fusegrad/ops/linear.h>
#include <fusegrad/ops/mse_loss.h>
#include <fusegrad/ops/reduction.h>
#include <fusegrad/ops/reshape.h>
#include <fusegrad/ops/softmax_cross_entropy.h>

namespace fusegrad {
namespace {

using testing::ElementsAre;
using testing::ThrowsMessage;

class SweepTest : public test::TapeFixture {};

// Seeds.

TEST_F(SweepTest, ASeedIsCheckedBeforeAnythingChanges) {
  const Context other = Context::cpu({.threads = 1});
  Tape tape(context_);
  const Var x = tape.variable(row({1, 2}));
  const Var y = mul(x, x);
  EXPECT_THAT([&] { tape.backward(y); },
              ThrowsMessage<ShapeError>(
                  "backward: the root has shape [2], so it needs a seed of that shape; only a scalar needs none"));
  EXPECT_THROW(tape.backward(y, row({1, 2, 3})), ShapeError);
  EXPECT_THROW(tape.backward(y, row({1, 2}).reshape({1, 2})), ShapeError);
  EXPECT_THROW(tape.backward(y, Tensor::zeros(context_, {2}, Dtype::f64)), DtypeError);
  EXPECT_THROW(tape.backward(y, Tensor::zeros(other, {2}, Dtype::f32)), DeviceError);
  EXPECT_THROW(tape.backward(y, Tensor()), StateError);
  EXPECT_THROW(tape.backward(y, row({1, 1}), {.loss_scale = 2}), ValueError);
  EXPECT_FALSE(tape.has_gradient(x));
  tape.backward(y, row({1, 10}));
  EXPECT_THAT(values(tape.gradient(x)), ElementsAre(2, 40));
}

TEST_F(SweepTest, TheRootMustBeComputedFromSomethingDifferentiable) {
  Tape tape(context_);
  const Var c = tape.input(row({3}));
  const Var x = tape.variable(row({3}));
  EXPECT_THAT([&] { tape.backward(scale(c, 2)); },
              ThrowsMessage<StateError>("backward: scale depends on nothing that gets a gradient: no variable, "
                                        "no unfrozen parameter"));
  EXPECT_THAT([&] { tape.backward(x); },
              ThrowsMessage<StateError>("backward: the root is a variable itself, not computed by any op"));
  ParameterSet set(context_);
  const Parameter p = add_parameter(set, "p", {1});
  EXPECT_THROW(tape.backward(tape.parameter(p)), StateError);
  EXPECT_FALSE(p.has_gradient());
}

TEST_F(SweepTest, NodesBesideTheRootDoNotMatter) {
  Tape tape(context_);
  const Var x = tape.variable(row({2}));
  const Var y = mul(x, x);
  const Var later = mul(y, x);
  tape.backward(y);
  EXPECT_EQ(tape.gradient(x).item(), 4);
  EXPECT_THROW(later.value(), StateError);
}

TEST_F(SweepTest, ASeedIsNeverWritten) {
  for (const bool borrowed : {false, true}) {
    float memory[] = {1, -2};
    const Tensor seed = borrowed ? Tensor::borrow(context_, {2}, memory) : row({1, -2});
    Tape tape(context_);
    const Var a = tape.variable(row({1, 2}));
    const Var b = tape.variable(row({3, 4}));
    // The seed reaches a and b without a copy, and a gets more contributions on top.
    const Var y = reshape(a, {2}) + b + scale(a, 2) + a;
    const std::uint64_t version = seed.version();
    tape.backward(y, seed, {.keep = true});
    tape.backward(y, seed);
    EXPECT_THAT(values(seed), ElementsAre(1, -2));
    EXPECT_EQ(seed.version(), version);
    EXPECT_THAT(values(tape.gradient(a)), ElementsAre(8, -16));
    EXPECT_THAT(values(tape.gradient(b)), ElementsAre(2, -4));
  }
}

TEST_F(SweepTest, ABorrowedSeedMayBeFreedAfterwards) {
  auto memory = std::make_unique<std::vector<float>>(std::vector<float>{5, 6});
  Tape tape(context_);
  const Var a = tape.variable(row({1, 2}));
  const Var y = reshape(a, {2, 1});
  tape.retain_gradient(y);
  tape.backward(y, Tensor::borrow(context_, {2, 1}, memory->data()));
  *memory = {-1, -1};
  memory.reset();
  EXPECT_THAT(values(tape.gradient(a)), ElementsAre(5, 6));
  EXPECT_THAT(values(tape.gradient(y)), ElementsAre(5, 6));
}

TEST_F(SweepTest, AParametersGradientMayBeTheSeed) {
  ParameterSet set(context_);
  const Parameter p = add_parameter(set, "p", {1, 2});
  Tape tape(context_);
  const Var w = tape.parameter(p);
  const Var y = mul(w, w);
  tape.backward(y, row({1, 1}), {.keep = true});
  EXPECT_THAT(values(p.gradient()), ElementsAre(2, 4));
  tape.backward(y, p.gradient());  // 2 w (2 w), on top of what is there, which is read meanwhile
  EXPECT_THAT(values(p.gradient()), ElementsAre(2 + 4, 4 + 16));
}

// Repeated backward.

TEST_F(SweepTest, AGradientThatIsItselfAnOperandIsRefusedRatherThanOverwritten) {
  ParameterSet set(context_);
  const Parameter p = add_parameter(set, "p", {3});
  Tape first(context_);
  first.backward(scale(first.parameter(p), 2));
  Tape tape(context_);
  const Var y = mul(tape.input(p.gradient()), tape.parameter(p));
  EXPECT_THROW(tape.backward(y), StateError);
  EXPECT_FALSE(p.has_gradient());
}

TEST_F(SweepTest, ASecondBackwardIsRefusedAndChangesNothing) {
  Tape tape(context_);
  const Var a = tape.variable(row({3}));
  const Var b = tape.variable(row({2}));
  const Var d = tape.variable(row({1}));
  const Var e = mul(add(a, b), d);
  tape.backward(e);
  EXPECT_THROW(tape.backward(e), StateError);
  EXPECT_EQ(tape.gradient(a).item(), 1);
  EXPECT_EQ(tape.gradient(d).item(), 5);
}

TEST_F(SweepTest, ASecondBackwardWithKeepDoublesGradientsExactly) {
  Tape tape(context_);
  const Var a = tape.variable(row({0.1f, 3}));
  const Var b = tape.variable(row({0.7f, 2}));
  const Var hidden = add(a, b);
  const Var e = mul(hidden, b);
  tape.retain_gradient(hidden);
  tape.backward(e, row({0.3f, 1}), {.keep = true});
  const std::vector<float> first = values(tape.gradient(a));
  const std::vector<float> inner = values(tape.gradient(hidden));
  const Tensor held = tape.gradient(a);
  tape.backward(e, row({0.3f, 1}));
  EXPECT_THAT(values(tape.gradient(a)), ElementsAre(2 * first[0], 2 * first[1]));
  EXPECT_EQ(values(tape.gradient(hidden)), inner) << "a retained gradient is replaced, the same bits";
  EXPECT_EQ(values(held), first) << "a gradient that someone holds is not added to in place";
}

// Contributions.

/// An op whose rule looks at its request: y = x, dx = dy.
struct Seen {
  bool contributed = false;  ///< there was a c
  bool in_place = false;     ///< d is c
  bool alias = false;        ///< dy could have been handed on
  bool offered = false;      ///< the input's activation gradient could have been applied
};

class ProbeRule final : public Rule {
 public:
  explicit ProbeRule(std::vector<Seen>* seen) : seen_(seen) {}
  void backward(Backward& sweep) override {
    Seen seen{.alias = sweep.may_alias(0)};
    GradientRequest request = sweep.request(0, Absorb::yes);
    seen.offered = request.absorb != nullptr;
    seen.contributed = request.c.defined();
    seen.in_place = seen.contributed && request.c.raw() == request.d.raw();
    const auto dy = sweep.dy().data<float>();
    std::vector<float> sum(dy.begin(), dy.end());
    if (seen.contributed) {
      const auto c = request.c.data<float>();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += c[i];
    }
    request.d.copy_from(sum);
    sweep.written(0);
    seen_->push_back(seen);
  }

 private:
  std::vector<Seen>* seen_;
};

Var probe(const Var& x, std::vector<Seen>& seen) {
  Recording op("probe", {x});
  return op.finish<ProbeRule>(op.input(0).clone(), &seen);
}

TEST_F(SweepTest, EveryContributionIsToldWhatCameBefore) {
  std::vector<Seen> seen;
  Tape tape(context_);
  const Var x = tape.variable(row({1, 2}));
  const Var h = scale(x, 1);
  const Var first = probe(h, seen);  // visited last
  const Var second = probe(h, seen);
  const Var third = probe(h, seen);  // visited first
  tape.backward(first + second + third, row({1, 10}));
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_TRUE(seen[0].alias);
  EXPECT_FALSE(seen[0].contributed);
  for (const std::size_t later : {1, 2}) {
    EXPECT_FALSE(seen[later].alias);
    EXPECT_TRUE(seen[later].contributed);
    EXPECT_TRUE(seen[later].in_place) << "nobody else holds the sum so far";
  }
  EXPECT_THAT(values(tape.gradient(x)), ElementsAre(3, 30));
}

TEST_F(SweepTest, AnAliasedContributionIsAddedToElsewhere) {
  std::vector<Seen> seen;
  Tape tape(context_);
  const Var x = tape.variable(row({1, 2}));
  const Var sibling = tape.variable(row({3, 4}));
  const Var probed = probe(x, seen);
  const Var sum_of_both = add(x, sibling);  // visited first: hands its dy to both
  tape.backward(add(probed, sum_of_both), row({1, 10}));
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_TRUE(seen[0].contributed);
  EXPECT_FALSE(seen[0].in_place);
  EXPECT_THAT(values(tape.gradient(x)), ElementsAre(2, 20));
  EXPECT_THAT(values(tape.gradient(sibling)), ElementsAre(1, 10));
}

TEST_F(SweepTest, FanOutOfOneToFiveIsSummed) {
  for (int fan_out = 1; fan_out <= 5; ++fan_out)
    for (int kind = 0; kind < 3; ++kind) {
      Tape tape(context_);
      const Var x = tape.variable(row({1, -2, 3}));
      const Var h = scale(x, 2);
      const Var c = tape.input(row({1, 2, 4}));
      const auto consumer = [&](int i) {
        if (kind == 0) return scale(h, i + 1);  // every contribution is written
        if (kind == 1) return add(h, c);        // every contribution could be an alias
        return i % 2 == 0 ? add(c, h) : mul(h, c);
      };
      Var y = consumer(0);
      for (int i = 1; i < fan_out; ++i) y = add(y, consumer(i));
      tape.backward(y, row({1, 1, 1}));
      const int written = fan_out * (fan_out + 1) / 2;
      const int even = (fan_out + 1) / 2;
      const int odd = fan_out / 2;
      std::vector<float> expected;
      for (const int factor : {1, 2, 4}) {
        const int each = kind == 0 ? written : kind == 1 ? fan_out : even + odd * factor;
        expected.push_back(static_cast<float>(2 * each));
      }
      EXPECT_EQ(values(tape.gradient(x)), expected) << "fan-out " << fan_out << ", kind " << kind;
    }
}

TEST_F(SweepTest, ConsumersThatDoNotLeadToTheRootDoNotCount) {
  // If the dead consumers were counted, h would wait for them, or the alias would be refused.
  Tape tape(context_);
  const Var x = tape.variable(row({1, 2}));
  const Var h = scale(x, 3);
  const Var dead = mul(h, h);
  const Var y = reshape(h, {2});
  const Var also_dead = sum(add(y, dead));
  const std::int64_t before = context_.counters().aliases;
  tape.backward(y, row({1, 1}));
  EXPECT_EQ(context_.counters().aliases - before, 1);
  EXPECT_THAT(values(tape.gradient(x)), ElementsAre(3, 3));
  EXPECT_THROW(also_dead.value(), StateError);
}

TEST_F(SweepTest, OnlyTheLastContributionIsOfferedTheActivationGradient) {
  for (const bool observed : {false, true})
    for (int fan_out = 1; fan_out <= 3; ++fan_out) {
      std::vector<Seen> seen;
      Tape tape(context_);
      const Var x = tape.variable(row({1, -2}));
      const Var h = relu(x);
      mul(h, h);  // leads nowhere: nobody waits for it
      Var y = probe(h, seen);
      for (int i = 1; i < fan_out; ++i) y = add(y, probe(h, seen));
      mul(h, h);  // nor for what comes after the root
      if (observed) tape.retain_gradient(h);
      const std::int64_t absorbed = context_.counters().absorbed;
      tape.backward(y, row({1, 10}));
      ASSERT_EQ(seen.size(), static_cast<std::size_t>(fan_out));
      for (int i = 0; i < fan_out; ++i) {
        EXPECT_EQ(seen[static_cast<std::size_t>(i)].offered, !observed && i == fan_out - 1)
            << "contribution " << i << " of " << fan_out;
      }
      // The probe declines, so relu applies it itself, to the sum.
      EXPECT_EQ(context_.counters().absorbed, absorbed);
      EXPECT_THAT(values(tape.gradient(x)), ElementsAre(static_cast<float>(fan_out), 0));
    }
}

/// Asks which of its inputs may have their gradients asked for together.
class TogetherRule final : public Rule {
 public:
  explicit TogetherRule(std::vector<bool>* answers) : answers_(answers) {}
  void backward(Backward& sweep) override {
    for (int a = 0; a < 4; ++a)
      for (int b = 0; b < 4; ++b) answers_->push_back(sweep.may_request_together(a, b));
    for (int input = 0; input < 4; ++input) {
      GradientRequest request = sweep.request(input);
      request.d.copy_from(request.c.defined() ? request.c
                                              : Tensor::zeros(sweep.context(), request.d.shape(), request.d.dtype()));
      sweep.written(input);
    }
  }

 private:
  std::vector<bool>* answers_;
};

TEST_F(SweepTest, GradientsMayBeAskedForTogetherUnlessOneGoesWithTheOther) {
  ParameterSet set(context_);
  const Parameter bias = add_parameter(set, "bias", {1});
  Tape tape(context_);
  const Var x = tape.variable(row({1}).reshape({1, 1}));
  const Var weight = tape.variable(row({1}).reshape({1, 1}));
  const Var b = tape.parameter(bias);
  const Var h = linear(x, weight, b, {.activation = Activation::relu});
  // h, the bias that goes with h's gradient, a weight, and h once more.
  std::vector<bool> answers;
  Recording op("together", {h, b, weight, h});
  tape.backward(op.finish<TogetherRule>(row({1}), &answers));
  EXPECT_THAT(answers, ElementsAre(false, false, true, false,  //
                                   false, false, true, false,  //
                                   true, true, false, true,    //
                                   false, false, true, false));
}

class ForgetfulRule final : public Rule {
 public:
  void backward(Backward&) override {}
};

TEST_F(SweepTest, ARuleThatLeavesAGradientOutIsFoundOut) {
  Tape tape(context_);
  const Var x = tape.variable(row({1}));
  Recording op("forgetful", {x});
  const Var y = op.finish<ForgetfulRule>(op.input(0).clone());
  EXPECT_THAT([&] { tape.backward(y); },
              ThrowsMessage<StateError>("backward: the rule of forgetful left out the gradient of input 0"));
}

// Values that changed.

TEST_F(SweepTest, AValueThatChangedSinceForwardIsAnErrorAndNothingElseHappens) {
  ParameterSet set(context_);
  const Parameter p = add_parameter(set, "p", {2, 3});
  const Parameter q = add_parameter(set, "q", {4, 5});
  Tape tape(context_);
  Tensor input = row({1, 2});
  const Var x = tape.variable(input);
  const Var h = mul(x, tape.parameter(p));
  const Var y = mul(h, tape.parameter(q));
  p.assign(row({7, 7}));
  EXPECT_THAT(
      [&] {
        tape.backward(y, row({1, 1}));
      },
      ThrowsMessage<StateError>("backward: a value that mul (node 2) saved was changed since forward"));
  EXPECT_FALSE(p.has_gradient());
  EXPECT_FALSE(q.has_gradient());
  EXPECT_FALSE(tape.has_gradient(x));
  EXPECT_THAT(values(h.value()), ElementsAre(2, 6)) << "the tape is not spent";
}

TEST_F(SweepTest, EverySavedOperandIsWatched) {
  const auto changed = [&](auto&& record, Tensor& tensor) {
    Tape tape(context_);
    const Var y = record(tape);
    tensor.mutable_raw();
    EXPECT_THROW(tape.backward(y, Tensor::full(context_, y.shape(), y.dtype(), 1)), StateError);
  };
  Tensor x = row({1, 2});
  Tensor c = row({3, 4});
  Tensor labels = Tensor::from(context_, {1}, {0});
  Tensor weights = row({1, 1});
  const SoftmaxCrossEntropyOptions weighted{.class_weights = weights};
  changed([&](Tape& tape) { return mul(tape.variable(x), tape.input(c)); }, c);
  changed([&](Tape& tape) { return mul(tape.variable(x), tape.variable(c)); }, x);
  changed([&](Tape& tape) { return mse_loss(tape.variable(x), c); }, x);
  changed([&](Tape& tape) { return mse_loss(tape.variable(x), c); }, c);
  const auto loss = [&](Tape& tape) {
    return softmax_cross_entropy(reshape(tape.variable(x), {1, 2}), labels, weighted);
  };
  changed(loss, x);
  changed(loss, labels);
  changed(loss, weights);
}

TEST_F(SweepTest, AChangeThatBackwardDoesNotReadIsAllowed) {
  Tape tape(context_);
  Tensor input = row({1, 2});
  const Var x = tape.variable(input);
  const Var dead = mul(x, x);
  const Var y = scale(x, 3);
  input.mutable_data<float>()[0] = 100;
  tape.backward(y, row({1, 1}));
  EXPECT_THAT(values(tape.gradient(x)), ElementsAre(3, 3));
  EXPECT_THROW(dead.value(), StateError);
}

}  // namespace
}  // namespace fusegrad
