// One fused affine layer with its parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <fusegrad/autograd/parameter.h>
#include <fusegrad/autograd/tape.h>
#include <fusegrad/nn/initializers.h>
#include <fusegrad/ops/activation_kind.h>

namespace fusegrad {

struct LinearLayerOptions {
  std::int64_t in = 0;   ///< features of x; at least 1
  std::int64_t out = 0;  ///< features of y; at least 1
  Activation activation = Activation::none;
  bool bias = true;
  /// Unset: he_uniform before relu and gelu, xavier_uniform before no activation. Biases start at 0.
  std::optional<Initialization> initialization = std::nullopt;
  /// Unset: the set's, or f32 for a layer with a set of its own.
  std::optional<Dtype> dtype = std::nullopt;
  std::uint64_t seed = 0;
};

/// y = act(x weightᵀ + bias). Shapes: x [batch, in] -> y [batch, out]; weight [out, in], bias [out].
class LinearLayer {
 public:
  /// A layer with a parameter set of its own, named "weight" and "bias".
  /// Errors: ValueError for a size below 1; DtypeError.
  explicit LinearLayer(const Context& context, const LinearLayerOptions& options);
  /// A layer whose parameters are part of `set`, named "<name>.weight" and "<name>.bias"; with an empty name
  /// "weight" and "bias".
  /// Errors: as above; DtypeError if options.dtype is not the set's; ValueError if the set has such a name already;
  /// StateError if the set is in use. After an error the set is as it was.
  LinearLayer(const ParameterSet& set, const std::string& name, const LinearLayerOptions& options);

  /// Records the layer on x's tape. Errors: those of `linear`.
  Var operator()(const Var& x) const;

  const Parameter& weight() const { return weight_; }
  /// An empty handle if the layer has no bias.
  const Parameter& bias() const { return bias_; }
  Activation activation() const { return activation_; }
  const ParameterSet& parameters() const { return set_; }

 private:
  void add_parameters(const std::string& prefix, const LinearLayerOptions& options);

  ParameterSet set_;
  Parameter weight_;
  Parameter bias_;
  Activation activation_;
};

}  // namespace fusegrad
