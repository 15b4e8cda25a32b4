// What differs from optimizer to optimizer: its options, how many moments it keeps, and its pass. Not installed.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>

#include <fusegrad/autograd/check.h>
#include <fusegrad/optim/optimizer.h>
#include <fusegrad/optim/optimizer_kernels.h>

namespace fusegrad::detail {

using OptimizerOptions = decltype(OptimizerState::options);

/// One step over the flat buffers.
struct OptimizerPass {
  const Context& context;
  kernels::FlatParameters parameters = {};
  std::span<const Vector> moments = {};  ///< flat buffers
  // Unless there are scalars in the memory of a GPU:
  std::span<const std::int64_t> steps = {};       ///< one a slot: this update's number, 1 for the first
  std::span<const double> gradient_factors = {};  ///< one a slot: reciprocal of the loss scale
  double learning_rate = 0;
  const void* device_scalars = nullptr;  ///< one a slot, as advance() has made them
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::string_view kind() const = 0;
  virtual int moment_count() const = 0;
  /// All options but the learning rate.
  virtual OptimizerOptions options() const = 0;
  /// The same rule with other options, which hold exactly the names that options() has. Errors: ValueError.
  virtual std::unique_ptr<UpdateRule> with_options(const OptimizerOptions& options) const = 0;
  /// Makes room for the scalars of `parameters` slots, so that run() allocates nothing.
  virtual void reserve(std::size_t parameters) = 0;
  virtual void run(const OptimizerPass& pass) = 0;
  /// Bytes of one parameter's scalars.
  virtual std::size_t scalar_bytes() const = 0;
  /// On a GPU: counts the steps up and makes the scalars of the next update.
  virtual void advance(const Context& context, const kernels::DeviceProgress& progress, void* scalars) const = 0;
};

/// Errors: ValueError unless `value` is finite and >= 0.
inline void check_not_negative(std::string_view kind, std::string_view name, double value) {
  require<ValueError>(std::isfinite(value) && value >= 0, "{}: {} must be finite and at least 0, got {}", kind, name,
                      value);
}

}  // namespace fusegrad::detail
