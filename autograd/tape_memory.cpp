// Tape::memory.
#include <algorithm>
#include <functional>

#include <fusegrad/autograd/tape_state.h>

namespace fusegrad::detail {

TapeMemory TapeState::memory() const {
  TapeMemory memory;
  std::vector<const void*> leaves;
  for (const Node& node : nodes) {
    if (node.kind == NodeKind::op) {
      memory.values += node.shape.size() * static_cast<std::int64_t>(size_of(node.dtype));
    } else {
      leaves.push_back(node.value);
    }
  }
  std::ranges::sort(leaves, std::less<>());

  // The same address is the same tensor, since everything that is saved stays until backward; of several views that
  // begin there the largest counts.
  std::vector<SavedMemory> distinct = saved;
  std::ranges::sort(distinct, [](const SavedMemory& a, const SavedMemory& b) {
    return a.data == b.data ? a.bytes > b.bytes : std::less<>()(a.data, b.data);
  });
  const auto same = [](const SavedMemory& a, const SavedMemory& b) { return a.data == b.data; };
  distinct.erase(std::unique(distinct.begin(), distinct.end(), same), distinct.end());
  for (const SavedMemory& tensor : distinct) {
    const bool leaf = std::ranges::binary_search(leaves, tensor.data, std::less<>());
    (leaf ? memory.saved_leaves : memory.saved) += tensor.bytes;
  }

  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i].parameter;
    // A parameter that was frozen in between has two leaves.
    const auto first = std::ranges::find(parameters, parameter, &ParameterLeaf::parameter);
    if (first == parameters.begin() + static_cast<std::ptrdiff_t>(i)) {
      const Tensor value = parameter.value();
      const Tensor master = parameter.master();
      memory.parameters += value.bytes() + (master.shares_memory_with(value) ? 0 : master.bytes());
    }
    if (nodes[parameters[i].node].needs_gradient)
      memory.gradients += slot_of(nodes[parameters[i].node]).gradient.bytes();
  }
  return memory;
}

}  // namespace fusegrad::detail
