// Adam, and AdamW with its decoupled weight decay.
#pragma once

#include <optional>

#include <fusegrad/optim/optimizer.h>

namespace fusegrad {

struct AdamOptions {
  double learning_rate = 1e-3;  ///< finite, >= 0
  double beta1 = 0.9;           ///< in [0, 1)
  double beta2 = 0.999;         ///< in [0, 1)
  double epsilon = 1e-8;        ///< finite, > 0, in the precision of the masters too
  double weight_decay = 0;      ///< finite, >= 0; coupled: added to the gradient
  /// Refuse steps with a non-finite gradient. Unset: if the gradients carry a loss scale other than 1.
  std::optional<bool> skip_nonfinite = std::nullopt;
};

struct AdamWOptions {
  double learning_rate = 1e-3;  ///< finite, >= 0
  double beta1 = 0.9;           ///< in [0, 1)
  double beta2 = 0.999;         ///< in [0, 1)
  double epsilon = 1e-8;        ///< finite, > 0, in the precision of the masters too
  double weight_decay = 0.01;   ///< finite, >= 0; decoupled: takes learning_rate * weight_decay of the value
  /// Refuse steps with a non-finite gradient. Unset: if the gradients carry a loss scale other than 1.
  std::optional<bool> skip_nonfinite = std::nullopt;
};

/// g = gradient + weight_decay p;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g²;
/// p -= learning_rate m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)
/// where t counts the updates of this parameter, this one included; 1 - beta^t is computed in double.
/// State:  m and v, f32 (f64 for f64).
/// Errors: ValueError for an option out of range.
/// Error:  one step is within 8 u |update| + u |p| of the exact one, u = 2^-24 (2^-53 for f64).
/// Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization" (2015), as torch.optim.Adam has it.
class Adam : public Optimizer {
 public:
  explicit Adam(const ParameterSet& parameters, const AdamOptions& options = {});
};

/// As Adam, but the decay does not go through the moments:
/// p -= learning_rate (weight_decay p + m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)).
/// Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (2019), as torch.optim.AdamW has it.
class AdamW : public Optimizer {
 public:
  explicit AdamW(const ParameterSet& parameters, const AdamWOptions& options = {});
};

}  // namespace fusegrad
