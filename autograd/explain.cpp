// The text of Tape::explain.
#include <iterator>

#include <fmt/format.h>

#include <fusegrad/autograd/tape_state.h>

namespace fusegrad::detail {
namespace {

std::string_view text_of(AbsorbOutcome outcome) {
  switch (outcome) {
    case AbsorbOutcome::none: return "";
    case AbsorbOutcome::absorbed: return "activation gradient absorbed by the consumer";
    case AbsorbOutcome::consumer_cannot: return "activation gradient not absorbed: the last consumer cannot";
    case AbsorbOutcome::observed: return "activation gradient not absorbed: the gradient is hooked or retained";
    case AbsorbOutcome::fusion_off: return "activation gradient not absorbed: fusion is off";
    case AbsorbOutcome::declined: return "activation gradient not absorbed: the consumer declined";
  }
  return "";
}

}  // namespace

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
    fmt::format_to(out, " {} {}", name_of(node.dtype), node.shape.to_string());
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
      fmt::format_to(out, "       {}{}\n", text_of(node.absorb), node.bias_absorbed ? ", with the bias gradient" : "");
    }
  }
  return text;
}

}  // namespace fusegrad::detail
