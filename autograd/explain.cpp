// Tape::explain, as text and as JSON.
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fusegrad/autograd/tape_state.h>

namespace fusegrad::detail {
namespace {

std::string_view name_of(AbsorbOutcome outcome) {
  switch (outcome) {
    case AbsorbOutcome::none: return "none";
    case AbsorbOutcome::absorbed: return "absorbed";
    case AbsorbOutcome::consumer_cannot: return "consumer_cannot";
    case AbsorbOutcome::observed: return "observed";
    case AbsorbOutcome::fusion_off: return "fusion_off";
    case AbsorbOutcome::declined: return "declined";
  }
  return "none";
}

std::string_view name_of(NodeKind kind) {
  switch (kind) {
    case NodeKind::input: return "input";
    case NodeKind::variable: return "variable";
    case NodeKind::parameter: return "parameter";
    case NodeKind::op: return "op";
  }
  return "op";
}

std::int64_t value_bytes(const Node& node) {
  return node.shape.size() * static_cast<std::int64_t>(size_of(node.dtype));
}

using Json = nlohmann::ordered_json;

Json list_of(std::span<const std::string_view> notes) {
  Json list = Json::array();
  for (const std::string_view note : notes) {
    if (!note.empty()) list.push_back(note);
  }
  return list;
}

}  // namespace

std::string_view absorb_text(const Node& node) {
  switch (node.absorb) {
    case AbsorbOutcome::none: return "";
    case AbsorbOutcome::absorbed:
      return node.bias_absorbed ? "activation gradient absorbed by the consumer, with the bias gradient"
                                : "activation gradient absorbed by the consumer";
    case AbsorbOutcome::consumer_cannot: return "activation gradient not absorbed: the last consumer cannot";
    case AbsorbOutcome::observed: return "activation gradient not absorbed: the gradient is hooked or retained";
    case AbsorbOutcome::fusion_off: return "activation gradient not absorbed: fusion is off";
    case AbsorbOutcome::declined: return "activation gradient not absorbed: the consumer declined";
  }
  return "";
}

std::string TapeState::explain() const {
  if (mode == Mode::inference) return "an inference tape records nothing\n";
  std::string text;
  auto out = std::back_inserter(text);
  for (std::size_t index = 0; index < nodes.size(); ++index) {
    const Node& node = nodes[index];
    fmt::format_to(out, "{:>4} {}", index, node.op);
    if (node.kind == NodeKind::parameter) {
      const Parameter& parameter = parameters[node.parameter].parameter;
      fmt::format_to(out, " \"{}\"", parameter.name());
    }
    if (node.input_count != 0) fmt::format_to(out, "({})", fmt::join(inputs_of(node), ", "));
    fmt::format_to(out, " {} {}, {} bytes", name_of(node.dtype), node.shape.to_string(), value_bytes(node));
    if (node.saved_bytes != 0) fmt::format_to(out, ", saves {} bytes", node.saved_bytes);
    if (!node.needs_gradient) fmt::format_to(out, ", constant");
    text += '\n';
    for (const std::string_view note : node.forward_notes) {
      if (!note.empty()) fmt::format_to(out, "       forward: {}\n", note);
    }
    for (const std::string_view note : node.backward_notes) {
      if (!note.empty()) fmt::format_to(out, "       backward: {}\n", note);
    }
    if (node.absorb != AbsorbOutcome::none) {
      fmt::format_to(out, "       {}\n", absorb_text(node));
    }
  }
  const TapeMemory total = memory();
  fmt::format_to(
      out, "total: values {} bytes, saved {} bytes beside {} of leaves; parameters {} bytes, gradients {} bytes\n",
      total.values, total.saved, total.saved_leaves, total.parameters, total.gradients);
  return text;
}

std::string TapeState::explain_json() const {
  Json all = Json::array();
  for (std::size_t index = 0; index < nodes.size(); ++index) {
    const Node& node = nodes[index];
    Json shape = Json::array();
    for (int axis = 0; axis < node.shape.rank(); ++axis) shape.push_back(node.shape[axis]);
    Json one{{"index", index}, {"kind", name_of(node.kind)}, {"op", node.op}};
    if (node.kind == NodeKind::parameter) one["name"] = parameters[node.parameter].parameter.name();
    one["inputs"] = inputs_of(node);
    one["dtype"] = fusegrad::name_of(node.dtype);
    one["shape"] = std::move(shape);
    one["value_bytes"] = value_bytes(node);
    one["saved_bytes"] = node.saved_bytes;
    one["needs_gradient"] = node.needs_gradient;
    one["forward"] = list_of(node.forward_notes);
    one["backward"] = list_of(node.backward_notes);
    one["absorb"] = name_of(node.absorb);
    one["bias_absorbed"] = node.bias_absorbed;
    all.push_back(std::move(one));
  }
  const TapeMemory total = memory();
  const Json tape{{"mode", mode == Mode::training ? "training" : "inference"},
                  {"fusion", fusion == Fusion::on ? "on" : "off"},
                  {"nodes", std::move(all)},
                  {"memory",
                   {{"values", total.values},
                    {"saved", total.saved},
                    {"saved_leaves", total.saved_leaves},
                    {"parameters", total.parameters},
                    {"gradients", total.gradients}}}};
  // A parameter's name may be any bytes.
  return tape.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fusegrad::detail
