// What Tape::memory counts: closed forms, each tensor once.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/support/device.h"

#include <fusegrad/fusegrad.h>

namespace fusegrad {
namespace {

using nlohmann::json;

class TapeMemoryTest : public test::DeviceTest {
 protected:
  static Parameter add_to(ParameterSet& set, std::string name, const Shape& shape) {
    return set.add(std::move(name), shape, [](std::span<float> out) { std::ranges::fill(out, 1.0f); });
  }
  Var variable(Tape& tape) { return tape.variable(Tensor::full(context(), {4}, Dtype::f32, 2)); }
};
INSTANTIATE_TEST_SUITE_P(Each, TapeMemoryTest, test::kDevices, test::device_name);

TEST_P(TapeMemoryTest, CountsASavedTensorOnce) {
  Tape tape(context());
  const Var a = variable(tape);
  const Var b = variable(tape);
  const Var y = mul(a, b);
  EXPECT_EQ(tape.memory().values, 16);
  EXPECT_EQ(tape.memory().saved, 0);
  EXPECT_EQ(tape.memory().saved_leaves, 32) << "a and b";
  const Var z = mul(y, y);
  EXPECT_EQ(tape.memory().saved, 16);
  const Var again = mul(reshape(y, {2, 2}), reshape(z, {2, 2}));
  EXPECT_EQ(tape.memory().saved, 32) << "y, also by another shape, and z";
  EXPECT_EQ(tape.memory().saved_leaves, 32);
  EXPECT_EQ(tape.memory().values, 16 * 5);
  tape.backward(sum(again));
  EXPECT_EQ(tape.memory().saved, 32) << "what was held until backward";
  EXPECT_EQ(tape.memory().values, 16 * 5 + 4);
  tape.reset();
  EXPECT_EQ(tape.memory().values + tape.memory().saved + tape.memory().saved_leaves, 0);
}

TEST_P(TapeMemoryTest, AFusedLayerSavesItsInputsAndAMask) {
  ParameterSet set(context());
  const Parameter w1 = add_to(set, "w1", {16, 8});
  const Parameter w2 = add_to(set, "w2", {4, 16});
  Tape tape(context());
  const Var x = tape.input(Tensor::full(context(), {128, 8}, Dtype::f32, 1));
  const Var h = linear(x, tape.parameter(w1), {.activation = Activation::relu});
  const std::int64_t mask = tape.memory().saved;
  EXPECT_GE(mask, 128 * 16 / 8);
  EXPECT_LE(mask, 128 * 128 / 8) << "a row may be padded";
  EXPECT_EQ(tape.memory().saved_leaves, 128 * 8 * 4) << "x; no gradient of x, no need of w1";
  linear(h, tape.parameter(w2));
  EXPECT_EQ(tape.memory().saved, mask + 128 * 16 * 4);
  EXPECT_EQ(tape.memory().saved_leaves, 128 * 8 * 4 + 4 * 16 * 4);
}

TEST_P(TapeMemoryTest, CountsParametersWithTheirMastersAndGradients) {
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
    SCOPED_TRACE(name_of(dtype));
    ParameterSet set(context(), dtype);
    const Parameter p = add_to(set, "p", {10});
    const Parameter frozen = add_to(set, "frozen", {3});
    frozen.freeze();
    Tape tape(context());
    tape.parameter(p);
    tape.parameter(p);
    tape.parameter(frozen);
    const auto wide = static_cast<std::int64_t>(size_of(accumulation_dtype(dtype)));
    const auto narrow = static_cast<std::int64_t>(size_of(dtype));
    EXPECT_EQ(tape.memory().parameters, 13 * (wide == narrow ? wide : wide + narrow));
    EXPECT_EQ(tape.memory().gradients, 10 * wide);
    p.freeze();
    tape.parameter(p);
    EXPECT_EQ(tape.memory().parameters, 13 * (wide == narrow ? wide : wide + narrow)) << "a second leaf, frozen";
    EXPECT_EQ(tape.memory().gradients, 10 * wide);
  }
}

TEST_P(TapeMemoryTest, IsTheSumOfTheNodesThatExplainLists) {
  const Mlp net(context(), {.widths = {8, 16, 4}, .activation = Activation::gelu_tanh, .seed = 1});
  Tape tape(context());
  tape.backward(mean(net(tape.input(Tensor::full(context(), {32, 8}, Dtype::f32, 1)))));
  const json explained = json::parse(tape.explain(ExplainFormat::json));
  std::int64_t values = 0;
  std::int64_t parameters = 0;
  std::int64_t saved = 0;
  for (const json& node : explained.at("nodes")) {
    const auto bytes = node.at("value_bytes").get<std::int64_t>();
    if (node.at("kind") == "op") values += bytes;
    if (node.at("kind") == "parameter") parameters += bytes;
    saved += node.at("saved_bytes").get<std::int64_t>();
  }
  EXPECT_EQ(values, tape.memory().values);
  EXPECT_EQ(values, (32 * 16 + 32 * 4 + 1) * 4);
  EXPECT_EQ(parameters, tape.memory().parameters);
  EXPECT_EQ(saved, tape.memory().saved + tape.memory().saved_leaves) << "nothing is saved twice in a chain";
  EXPECT_EQ(explained.at("memory").at("saved"), tape.memory().saved);
}

TEST_P(TapeMemoryTest, InferenceHoldsNothing) {
  const Mlp net(context(), {.widths = {8, 16, 4}, .seed = 1});
  Tape tape(context(), Mode::inference);
  net(tape.input(Tensor::full(context(), {32, 8}, Dtype::f32, 1)));
  EXPECT_EQ(tape.memory().values + tape.memory().saved + tape.memory().parameters, 0);
}

}  // namespace
}  // namespace fusegrad
