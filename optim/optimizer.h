// What all optimizers share: they step the parameters of a set from the gradients that backward left there.
//
//   fusegrad::AdamW optimizer(net.parameters(), {.learning_rate = 1e-3});
//   ...
//   tape.backward(loss);
//   optimizer.step();
//
// A parameter whose gradient is empty, because backward did not reach it, or that is frozen is skipped: neither its
// value, nor its moments, nor its step count change. After a step all gradients of the set are empty.
//
// The arithmetic is fp32 (fp64 for f64 parameters) on the master weights, in one pass that also rounds them to 16-bit
// values where the set has those.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fusegrad/autograd/parameter.h>

namespace fusegrad {

namespace detail {
class UpdateRule;
}

/// What a call of step() did.
struct StepReport {
  /// False if the step was refused because a gradient was not finite; then nothing but the gradients has changed.
  bool applied = true;
  std::int64_t stepped = 0;  ///< parameters that were updated
  std::int64_t skipped = 0;  ///< parameters that were not: frozen, without a gradient, or all of a refused step
  /// If the step was refused: the first parameter whose gradient holds an infinity or a NaN. Else an empty handle.
  Parameter nonfinite = {};
};

/// What an optimizer remembers, as copies: together with the parameters' master weights enough to go on as if never
/// interrupted, to the last bit.
struct OptimizerState {
  /// What it remembers about one parameter.
  struct Slot {
    std::string name = {};
    std::int64_t steps = 0;            ///< updates applied so far
    std::vector<Tensor> moments = {};  ///< of the parameter's shape; SGD: velocity if there is momentum; Adam: m, v
  };
  std::string kind = {};                                    ///< "sgd", "adam" or "adamw"
  std::map<std::string, double, std::less<>> options = {};  ///< by name: learning rate, betas, ...; flags are 0 or 1
  std::vector<Slot> parameters = {};
};

/// A parameter set with a way to step it; made as Sgd, Adam or AdamW, and then usable as any of them. Keeps the set's
/// storage alive, so the modules may move or go. The first optimizer made closes the set to further parameters.
/// One that was moved from can only be assigned to or destroyed: all else is a StateError.
class Optimizer {
 public:
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;
  ~Optimizer();

  /// Updates every unfrozen parameter that has a gradient, divided by the loss scale that backward was given (a power
  /// of two, so nothing is rounded), and empties all gradients of the set.
  /// Guard:   where it is on, a step with a non-finite gradient updates nothing and advances no step count, see the
  ///          report; one more pass over the gradients. It is the option skip_nonfinite; left unset it is on exactly
  ///          for steps whose gradients carry a loss scale other than 1, since a scale is what makes f16 overflow an
  ///          ordinary event.
  /// A tape recorded before the step refuses a backward that would read a stepped value (StateError).
  /// Bits:    do not depend on the number of threads. Allocates nothing.
  StepReport step();

  const ParameterSet& parameters() const;

  double learning_rate() const;
  /// Errors: ValueError unless finite and >= 0.
  void set_learning_rate(double learning_rate);

  /// Updates applied to `parameter` so far. Errors: ValueError if it is not of this set.
  std::int64_t steps(const Parameter& parameter) const;

  /// Bytes of the moments that it keeps for all parameters.
  std::int64_t state_bytes() const;

  OptimizerState state() const;
  /// Takes over a state, options included; only the guard's option stays. Parameters are matched by name.
  /// Errors: ValueError if the kind differs, an option is missing, unknown or out of range, a name is missing, unknown
  /// or twice, or a step count is negative; ShapeError or DtypeError for a moment. Nothing has changed then.
  void load_state(const OptimizerState& state);

 protected:
  Optimizer(const ParameterSet& parameters, double learning_rate, std::unique_ptr<detail::UpdateRule> rule,
            std::optional<bool> skip_nonfinite);

 private:
  class Impl;
  Impl& impl() const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fusegrad
