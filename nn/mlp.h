// A multi-layer perceptron: fused linear layers in a row.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <fusegrad/nn/linear_layer.h>

namespace fusegrad {

struct MlpOptions {
  /// Features of the input, of each hidden layer, and of the output: at least two, each at least 1.
  std::vector<std::int64_t> widths = {};
  /// Of the hidden layers.
  Activation activation = Activation::relu;
  /// Of the last layer. Losses take logits, so usually none.
  Activation output_activation = Activation::none;
  bool bias = true;
  /// Of all weights. Unset: he_uniform before relu and gelu, xavier_uniform before no activation. Biases start at 0.
  std::optional<Initialization> initialization = std::nullopt;
  /// Of values and products. Unset: the set's, or f32 for a network with a set of its own. bf16 and f16 keep fp32
  /// master weights, gradients and optimizer state.
  std::optional<Dtype> dtype = std::nullopt;
  /// Of the initial weights. Equal seeds give equal weights on every machine and device.
  std::uint64_t seed = 0;
};

/// y = layer_n(... layer_1(x)). Shapes: x [batch, widths.front()] -> y [batch, widths.back()].
class Mlp {
 public:
  /// A network with a parameter set of its own, named "0.weight", "0.bias", "1.weight" and so on.
  /// Errors: ValueError for the widths; DtypeError.
  Mlp(const Context& context, const MlpOptions& options);
  /// A network whose parameters are part of `set`, named "<name>.0.weight" and so on.
  /// Errors: as above; those of LinearLayer for the set. After an error the set is as it was.
  Mlp(const ParameterSet& set, const std::string& name, const MlpOptions& options);

  /// Records the network on x's tape. Errors: ShapeError unless x is [batch, widths.front()] (leading axes are taken
  /// together); DtypeError unless it has the parameters' dtype; those of `linear`; StateError if the network was moved
  /// from.
  Var operator()(const Var& x) const;

  /// A shared handle that survives the network.
  const ParameterSet& parameters() const { return set_; }
  const std::vector<LinearLayer>& layers() const { return layers_; }

 private:
  void add_layers(const std::string& prefix, const MlpOptions& options);

  ParameterSet set_;
  std::vector<LinearLayer> layers_;
};

}  // namespace fusegrad
