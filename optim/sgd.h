// Stochastic gradient descent with momentum.
#pragma once

#include <optional>

#include <fusegrad/optim/optimizer.h>

namespace fusegrad {

struct SgdOptions {
  double learning_rate = 1e-3;  ///< finite, >= 0
  double momentum = 0;          ///< finite, >= 0
  double dampening = 0;         ///< finite; not applied to a parameter's first step
  bool nesterov = false;        ///< needs momentum > 0 and dampening 0
  double weight_decay = 0;      ///< finite, >= 0; added to the gradient
  /// Refuse steps with a non-finite gradient. Unset: if the gradients carry a loss scale other than 1.
  std::optional<bool> skip_nonfinite = std::nullopt;
};

/// g = gradient + weight_decay p;  v = momentum v + (1 - dampening) g, at a parameter's first step v = g;
/// p -= learning_rate u, with u = v, or g + momentum v with nesterov, or g without momentum.
/// State:  the velocity v, if there is momentum: f32 (f64 for f64).
/// Errors: ValueError for an option out of range.
/// Error:  one step is within 8 u |update| + u |p| of the exact one, u = 2^-24 (2^-53 for f64).
/// Source: the update rule of torch.optim.SGD.
class Sgd : public Optimizer {
 public:
  explicit Sgd(const ParameterSet& parameters, const SgdOptions& options = {});
};

}  // namespace fusegrad
