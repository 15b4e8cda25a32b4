// A training step as one captured graph: on a GPU, launching it costs the host a few microseconds, whatever is in it.
//
//   fusegrad::Step step(context, [&](fusegrad::Tape& tape, const fusegrad::Tensor& x, const fusegrad::Tensor& label) {
//     fusegrad::Var loss = fusegrad::softmax_cross_entropy(net(tape.input(x)), label);
//     tape.backward(loss);
//     optimizer.step();
//     return loss;
//   });
//   for (auto [x, label] : batches) step(x, label);
//
// A call copies its arguments into tensors of the step's own and runs the function on them. On a GPU the first call
// with arguments of new shapes runs it as it is, and measures plans unless the context was told how to choose them; the
// second captures it in a graph; the later ones launch that graph. So what the function does on the host happens in the
// first two calls only: it must not depend on anything that changes between calls but the values of tensors, the
// optimizers' learning rates, and their step counts, which a graph reads from the GPU's memory. On a CPU every call
// runs the function.
//
// In a graph, work that does not depend on each other may run side by side (StepOptions::branches): a layer's weight
// gradient beside its input gradient, or beside the pass that finishes that where it has a tile for each multiprocessor
// (never beside a product of more than 1e11 operations, which needs the GPU for itself); the
// optimizer's pass over a layer as soon as its gradient is complete, beside a product that leaves it some of the
// multiprocessors where that saves time. The results are the same, bit for bit.
//
// What the function may not do on a GPU, because a graph cannot repeat it (each is a StateError that says so, and
// leaves context and step usable): read a tensor or a step count on the host, copy from the host, wait, set a learning
// rate, use another context, call or reset a Step, leave a gradient valid that was empty before or the other way round,
// use an optimizer with skip_nonfinite. Nor may, between the calls, a parameter be frozen or unfrozen or an optimizer
// load a state: reset() the step then. Calls of the CUDA runtime in it that cannot be captured invalidate the capture;
// those that can be, on streams of the caller's, are not seen: they happen in the first two calls and never again.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <fusegrad/autograd/tape.h>
#include <fusegrad/autograd/tensor.h>

namespace fusegrad {

struct StepOptions {
  /// inference: the function's tape records nothing, and what it returns may have any shape.
  Mode mode = Mode::training;
  /// Whether independent work in a graph may run side by side.
  bool branches = true;
  /// Graphs that are kept, one for each combination of shapes and dtypes; beyond that the one that was not used for
  /// longest goes. Range: at least 1.
  int graphs = 4;
};

/// What one argument of a call is like.
struct StepInput {
  Shape shape = {};
  Dtype dtype = Dtype::f32;
  bool operator==(const StepInput&) const = default;
};

/// What a Step holds and has done.
struct StepInfo {
  std::int64_t calls = 0;         ///< whose function ran to its end
  std::int64_t captures = 0;      ///< graphs made
  std::int64_t replays = 0;       ///< calls that launched a graph
  std::int64_t graphs = 0;        ///< graphs held
  std::int64_t graph_nodes = 0;   ///< kernels, copies and fills of the graph last used
  std::int64_t memory_bytes = 0;  ///< device memory set apart for the step, its arguments included
};

namespace detail {
/// Number of `const Tensor&` that F takes after a Tape&; -1: none of 0 to 8 fits.
template <class F, std::size_t count = 0>
consteval int tensor_arguments() {
  constexpr bool fits = []<std::size_t... i>(std::index_sequence<i...>) {
    return std::is_invocable_r_v<Var, F&, Tape&, std::conditional_t<(i >= 0), const Tensor&, void>...>;
  }
  (std::make_index_sequence<count>());
  if constexpr (fits) {
    return static_cast<int>(count);
  } else if constexpr (count < 8) {
    return tensor_arguments<F, count + 1>();
  } else {
    return -1;
  }
}
}  // namespace detail

class Step {
 public:
  using Function = std::function<Var(Tape&, std::span<const Tensor>)>;

  /// `function`: (Tape&, const Tensor&...) -> Var, with up to 8 tensors; what it refers to must outlive the step.
  template <class F>
  requires(detail::tensor_arguments<F>() >= 0) Step(const Context& context, F function, const StepOptions& options = {})
      : Step(context, detail::tensor_arguments<F>(), wrap(std::move(function)), options) {}
  /// The same with `inputs` tensors as a span. Errors: ValueError for an option out of range.
  Step(const Context& context, int inputs, Function function, const StepOptions& options = {});
  Step(Step&&) noexcept;
  Step& operator=(Step&&) noexcept;
  /// Waits for nothing: work that was enqueued still runs.
  ~Step();

  /// Runs one step and returns what the function returned. On a GPU that is a tensor which the next call with arguments
  /// of the same shapes overwrites: clone() or read it before. An argument that is the step's own (inputs()) is not
  /// copied.
  /// Errors: ShapeError for another number of arguments, or a loss that is not a scalar; DeviceError for an argument on
  /// another context; StateError, see above; whatever the function throws.
  template <std::same_as<Tensor>... Tensors>
  Tensor operator()(const Tensors&... arguments) {
    const std::array<Tensor, sizeof...(Tensors)> all{arguments...};
    return run(all);
  }
  Tensor run(std::span<const Tensor> arguments);

  /// The step's own tensors for arguments of these shapes and dtypes, which a call takes without a copy; uninitialised
  /// when they are new. On a CPU they are ordinary tensors. Errors: ShapeError for another number of them;
  /// OutOfMemoryError.
  std::vector<Tensor> inputs(std::span<const StepInput> like);
  std::vector<Tensor> inputs(std::initializer_list<StepInput> like) {
    return inputs(std::span(like.begin(), like.size()));
  }

  /// Loss of call number `call`, 0 for the first. Waits until that call has computed it, and for no later one: reading
  /// the loss of some calls ago does not stall a GPU. The last 1024 are kept.
  /// Errors: ValueError if that call was never made or is too long ago; StateError for an inference step.
  double loss(std::int64_t call) const;

  StepInfo info() const;
  /// Gives up all graphs and memory; the next call starts afresh. Errors: StateError inside of a step function.
  void reset();

 private:
  class Impl;

  template <class F>
  static Function wrap(F function) {
    return [function = std::move(function)](Tape& tape, std::span<const Tensor> inputs) mutable {
      return [&]<std::size_t... i>(std::index_sequence<i...>) { return Var(function(tape, inputs[i]...)); }
      (std::make_index_sequence<static_cast<std::size_t>(detail::tensor_arguments<F>())>());
    };
  }
  Impl& impl() const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace fusegrad
