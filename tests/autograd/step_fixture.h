// What the tests of steps share: values, and a small training.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "tests/support/device.h"
#include "tests/support/tensors.h"

#include <fusegrad/fusegrad.h>

namespace fusegrad::test {

/// Uniform from -1 to 1; another `stream`, other values.
inline Tensor random_tensor(const Context& context, const Shape& shape, Dtype dtype, std::uint32_t stream) {
  std::vector<float> values(static_cast<std::size_t>(shape.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        static_cast<float>(philox({static_cast<std::uint32_t>(i), 0, stream, 0}, {7, 0})[0] >> 8) * 0x1p-23f - 1;
  }
  return Tensor::from(context, shape, values).to(dtype);
}

/// Masters and values of all parameters.
inline std::vector<double> all_values(const ParameterSet& parameters) {
  std::vector<double> values;
  for (const Parameter& parameter : parameters) {
    for (const Tensor& tensor : {parameter.master(), parameter.value()}) {
      for (const double value : values_of(tensor)) values.push_back(value);
    }
  }
  return values;
}

/// A net, an optimizer and a step that trains it on fixed shapes; `inside` runs in the function, before backward.
class StepFixture : public DeviceTest {
 protected:
  /// Algorithms by rank: what is measured may differ from context to context.
  const Context& context() {
    if (!context_) context_ = context_on(GetParam(), {.plans = PlanPolicy::heuristic});
    return *context_;
  }

  struct Training {
    Mlp net;
    Adam optimizer;
    std::function<void(Tape&, const Var&)> inside;
    std::function<void()> after = {};

    Var operator()(Tape& tape, const Tensor& x, const Tensor& target) {
      const Var loss = mse_loss(net(tape.input(x)), target);
      if (inside) inside(tape, loss);
      tape.backward(loss);
      if (after) after();
      optimizer.step();
      return loss;
    }
  };

  Training training() {
    Mlp net(context(), {.widths = {16, 24, 8}, .seed = 1});
    return {net, Adam(net.parameters(), {.learning_rate = 1e-2}), {}};
  }
  Step step_of(Training& training, const StepOptions& options = {}) {
    return Step(
        context(), [&](Tape& tape, const Tensor& x, const Tensor& target) { return training(tape, x, target); },
        options);
  }
  Tensor x(std::int64_t batch = 32) { return random_tensor(context(), {batch, 16}, Dtype::f32, 1); }
  Tensor target(std::int64_t batch = 32) { return random_tensor(context(), {batch, 8}, Dtype::f32, 2); }
  bool on_gpu() const { return GetParam() == DeviceType::cuda; }

  /// f() throws an Error whose text contains `text`.
  template <class Error>
  static void expect_error(const std::function<void()>& f, const std::string& text) {
    try {
      f();
      ADD_FAILURE() << "nothing was thrown; wanted: " << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(text));
    }
  }

 private:
  std::optional<Context> context_;
};
}  // namespace fusegrad::test
