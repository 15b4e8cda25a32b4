// What a tape says about itself, as text and as JSON: the same content twice.
#include <string>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "tests/support/device.h"

#include <fusegrad/fusegrad.h>

namespace fusegrad {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class ExplainTest : public test::DeviceTest {
 protected:
  /// A step with every kind of node and a name that JSON has to escape.
  void run(Tape& tape) {
    ParameterSet set(context(), Dtype::f32);
    const Parameter w1 = set.add("w \"1\"\\", {16, 8}, constant(0.5));
    const Parameter b1 = set.add("b1", {16}, constant(0.25));
    const Parameter w2 = set.add("w2", {4, 16}, constant(-0.5));
    const Var x = tape.input(Tensor::full(context(), {32, 8}, Dtype::f32, 1));
    const Var v = tape.variable(Tensor::full(context(), {32, 8}, Dtype::f32, 2));
    const Var h = linear(add(x, v), tape.parameter(w1), tape.parameter(b1), {.activation = Activation::relu});
    const Var y = linear(h, tape.parameter(w2));
    if (tape.mode() == Mode::training) tape.backward(mean(y));
  }
  static Initializer constant(float value) {
    return [value](std::span<float> out) { std::ranges::fill(out, value); };
  }
};
INSTANTIATE_TEST_SUITE_P(Each, ExplainTest, test::kDevices, test::device_name);

/// The text that a node's JSON stands for.
std::string text_of(const json& node) {
  std::string text = std::to_string(node.at("index").get<int>());
  text = std::string(4 - std::min<std::size_t>(4, text.size()), ' ') + text + " " + node.at("op").get<std::string>();
  if (node.contains("name")) text += " \"" + node.at("name").get<std::string>() + "\"";
  const auto list = [](const json& numbers) {
    std::string joined;
    for (const json& number : numbers) joined += (joined.empty() ? "" : ", ") + std::to_string(number.get<int>());
    return joined;
  };
  if (!node.at("inputs").empty()) text += "(" + list(node.at("inputs")) + ")";
  text += " " + node.at("dtype").get<std::string>() + " [" + list(node.at("shape")) + "], " +
          std::to_string(node.at("value_bytes").get<int>()) + " bytes";
  if (node.at("saved_bytes") != 0) text += ", saves " + std::to_string(node.at("saved_bytes").get<int>()) + " bytes";
  if (!node.at("needs_gradient").get<bool>()) text += ", constant";
  text += "\n";
  for (const std::string way : {"forward", "backward"}) {
    for (const json& note : node.at(way)) text += "       " + way + ": " + note.get<std::string>() + "\n";
  }
  if (node.at("absorb") == "absorbed") {
    text += "       activation gradient absorbed by the consumer";
    text += node.at("bias_absorbed").get<bool>() ? ", with the bias gradient\n" : "\n";
  }
  return text;
}

TEST_P(ExplainTest, JsonHoldsWhatTheTextSays) {
  Tape tape(context());
  run(tape);
  const json explained = json::parse(tape.explain(ExplainFormat::json));
  EXPECT_EQ(explained.at("mode"), "training");
  EXPECT_EQ(explained.at("fusion"), "on");
  ASSERT_EQ(static_cast<std::int64_t>(explained.at("nodes").size()), tape.size());
  std::string text;
  for (const json& node : explained.at("nodes")) text += text_of(node);
  const auto total = [&](const char* of) { return std::to_string(explained.at("memory").at(of).get<int>()); };
  text += "total: values " + total("values") + " bytes, saved " + total("saved") + " bytes beside " +
          total("saved_leaves") + " of leaves; parameters " + total("parameters") + " bytes, gradients " +
          total("gradients") + " bytes\n";
  EXPECT_EQ(text, tape.explain());
  EXPECT_THAT(text, HasSubstr("activation gradient absorbed by the consumer"));
}

TEST_P(ExplainTest, JsonNamesKindsAndOutcomes) {
  Tape tape(context());
  run(tape);
  const json nodes = json::parse(tape.explain(ExplainFormat::json)).at("nodes");
  std::set<std::string> kinds;
  std::set<std::string> outcomes;
  for (const json& node : nodes) {
    kinds.insert(node.at("kind").get<std::string>());
    outcomes.insert(node.at("absorb").get<std::string>());
    EXPECT_EQ(node.contains("name"), node.at("kind") == "parameter");
  }
  EXPECT_EQ(kinds, (std::set<std::string>{"input", "variable", "parameter", "op"}));
  EXPECT_TRUE(outcomes.contains("absorbed"));
  EXPECT_TRUE(outcomes.contains("none"));
}

TEST_P(ExplainTest, UnfusedTapesSaySo) {
  Tape tape(context(), {.fusion = Fusion::off});
  run(tape);
  const json explained = json::parse(tape.explain(ExplainFormat::json));
  EXPECT_EQ(explained.at("fusion"), "off");
  EXPECT_THAT(explained.dump(), HasSubstr("unfused"));
}

TEST_P(ExplainTest, InferenceTapesHaveNoNodes) {
  Tape tape(context(), Mode::inference);
  run(tape);
  const json explained = json::parse(tape.explain(ExplainFormat::json));
  EXPECT_EQ(explained.at("mode"), "inference");
  EXPECT_TRUE(explained.at("nodes").empty());
  EXPECT_EQ(tape.explain(), "an inference tape records nothing\n");
}

TEST_P(ExplainTest, NamesThatAreNoTextGiveValidJson) {
  ParameterSet set(context(), Dtype::f32);
  const Parameter w = set.add("\xff\xfe", {2}, constant(1));
  Tape tape(context());
  tape.parameter(w);
  EXPECT_FALSE(json::parse(tape.explain(ExplainFormat::json), nullptr, false).is_discarded());
}

}  // namespace
}  // namespace fusegrad
