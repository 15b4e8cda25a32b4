// Random networks of linear layers, relu, residual joins, fan-out and shared weights, whose gradients are exact.
//
// With the branches of the base point frozen, the loss is a polynomial of degree at most 2 in any one coordinate (a
// parameter is used at most twice), so the central difference is the derivative. Inputs and weights are small dyadic
// numbers and h = 2^-10: every value is representable in f64, and gradient and difference are compared with ==.
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/device.h"
#include "tests/support/tensors.h"

#include <fusegrad/autograd/branch_log.h>
#include <fusegrad/fusegrad.h>

namespace fusegrad {
namespace {

constexpr int kNetworks = 200;
constexpr double kStep = 0x1p-10;

/// One step of a random program; operands are numbers of earlier values, parameters numbers of layers.
struct Instruction {
  enum class Kind : std::uint8_t { linear, join, relu } kind;
  std::size_t a = 0;
  std::size_t b = 0;      ///< join: the other value
  std::size_t layer = 0;  ///< linear: its parameters
  Activation activation = Activation::none;
};

struct Layer {
  std::int64_t in = 0;
  std::int64_t out = 0;
  int uses = 0;
};

class RandomNetwork {
 public:
  explicit RandomNetwork(std::uint64_t seed) : random_(seed, 0) {
    batch_ = 1 + below(3);
    widths_.push_back(1 + below(9));
    const std::int64_t depth = 1 + below(6);
    for (std::int64_t i = 0; i < depth; ++i) add_instruction();
  }

  /// Leaves: the input, then w and b of every layer.
  std::vector<Shape> shapes() const {
    std::vector<Shape> shapes{{batch_, widths_[0]}};
    for (const Layer& layer : layers_) {
      shapes.push_back({layer.out, layer.in});
      shapes.push_back({layer.out});
    }
    return shapes;
  }

  /// Multiples of 1/2 in [-1, 1]; for the input, integers in [-2, 2].
  std::vector<double> draw(std::size_t leaf, std::int64_t count) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto v = static_cast<double>(below(5) - 2);
      values.push_back(leaf == 0 ? v : v / 2);
    }
    return values;
  }

  /// Every value that nothing consumes is weighted with small integers and summed.
  Var loss(Tape& tape, const std::vector<Var>& leaves) const {
    std::vector<Var> values{leaves[0]};
    std::vector<bool> consumed(widths_.size(), false);
    for (const Instruction& step : program_) {
      const Var& a = values[step.a];
      consumed[step.a] = true;
      switch (step.kind) {
        case Instruction::Kind::linear:
          values.push_back(
              linear(a, leaves[1 + 2 * step.layer], leaves[2 + 2 * step.layer], {.activation = step.activation}));
          break;
        case Instruction::Kind::join:
          consumed[step.b] = true;
          values.push_back(add(a, values[step.b]));
          break;
        case Instruction::Kind::relu: values.push_back(relu(a)); break;
      }
    }
    Var total;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (consumed[i]) continue;
      std::vector<double> weights;
      for (std::int64_t j = 0; j < widths_[i]; ++j) weights.push_back(static_cast<double>((j + 2) % 5) - 1.5);
      const Var head = sum(linear(values[i], tape.input(Tensor::from(tape.context(), Shape{1, widths_[i]}, weights))));
      total = total.defined() ? add(total, head) : head;
    }
    return total;
  }

 private:
  std::int64_t below(std::uint32_t bound) { return random_.below(drawn_++, bound); }

  void add_instruction() {
    // Reach back at times, so that values fan out.
    const std::size_t last = widths_.size() - 1;
    const std::size_t a = below(3) == 0 ? static_cast<std::size_t>(below(static_cast<std::uint32_t>(last + 1))) : last;
    Instruction step{.kind = Instruction::Kind::linear, .a = a};
    const std::int64_t choice = below(6);
    if (choice == 0) {
      step.kind = Instruction::Kind::relu;
      widths_.push_back(widths_[a]);
    } else if (choice <= 2) {
      step.kind = Instruction::Kind::join;
      step.b = a;
      for (std::size_t i = 0; i < widths_.size(); ++i) {
        if (i != a && widths_[i] == widths_[a]) step.b = i;
      }
      widths_.push_back(widths_[a]);
    } else {
      step.activation = below(3) == 0 ? Activation::none : Activation::relu;
      step.layer = layers_.size();
      for (std::size_t i = 0; i < layers_.size(); ++i) {
        if (layers_[i].in == widths_[a] && layers_[i].uses < 2) step.layer = i;
      }
      if (step.layer == layers_.size()) {
        layers_.push_back({.in = widths_[a], .out = below(2) == 0 ? widths_[a] : 1 + below(9)});
      }
      ++layers_[step.layer].uses;
      widths_.push_back(layers_[step.layer].out);
    }
    program_.push_back(step);
  }

  Random random_;
  std::uint64_t drawn_ = 0;
  std::int64_t batch_ = 1;
  std::vector<std::int64_t> widths_;  // of every value
  std::vector<Layer> layers_;
  std::vector<Instruction> program_;
};

using RandomNetworkTest = test::DeviceTest;
INSTANTIATE_TEST_SUITE_P(Each, RandomNetworkTest, test::kDevices, test::device_name);

TEST_P(RandomNetworkTest, GradientsEqualFrozenCentralDifferencesExactly) {
  const Context context = this->context();
  std::int64_t coordinates = 0;
  for (int seed = 0; seed < kNetworks; ++seed) {
    SCOPED_TRACE(seed);
    RandomNetwork network(static_cast<std::uint64_t>(seed));
    std::vector<Tensor> leaves;
    for (const Shape& shape : network.shapes()) {
      leaves.push_back(Tensor::from(context, shape, network.draw(leaves.size(), shape.size())));
    }
    const auto variables = [&](Tape& tape) {
      std::vector<Var> vars;
      for (const Tensor& leaf : leaves) vars.push_back(tape.variable(leaf));
      return vars;
    };
    Tape tape(context);
    const std::vector<Var> vars = variables(tape);
    tape.backward(network.loss(tape, vars));
    BranchLog branches;
    const auto evaluate = [&](bool replay) {
      replay ? branches.replay() : branches.record();
      Tape unfused(context, {.mode = Mode::inference, .fusion = Fusion::off, .branches = &branches});
      return network.loss(unfused, variables(unfused)).item();
    };
    evaluate(false);
    for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
      const std::vector<double> base = leaves[leaf].to_vector<double>();
      std::vector<double> gradient(base.size(), 0.0);
      if (tape.has_gradient(vars[leaf])) gradient = tape.gradient(vars[leaf]).to_vector<double>();
      std::vector<double> moved = base;
      for (std::size_t i = 0; i < base.size(); ++i) {
        const auto at = [&](double t) {
          moved[i] = base[i] + t;
          leaves[leaf].copy_from(moved);
          return evaluate(true);
        };
        const double right = at(kStep);
        const double left = at(-kStep);
        at(0);
        ASSERT_EQ(gradient[i], (right - left) / (2 * kStep)) << "leaf " << leaf << ", element " << i;
        ++coordinates;
      }
    }
  }
  EXPECT_GT(coordinates, 9000);
}

}  // namespace
}  // namespace fusegrad
