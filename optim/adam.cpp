#include <limits>
#include <type_traits>
#include <vector>

#include <fusegrad/ops/dispatch.h>
#include <fusegrad/optim/adam.h>
#include <fusegrad/optim/update_functions.h>
#include <fusegrad/optim/update_rule.h>

namespace fusegrad {
namespace {

using detail::OptimizerOptions;
using detail::OptimizerPass;
using detail::require;
using detail::UpdateRule;

enum class WeightDecay : std::uint8_t { coupled, decoupled };

struct AdamConstants {
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;
};

class AdamRule final : public UpdateRule {
 public:
  AdamRule(WeightDecay kind, Dtype dtype, const AdamConstants& constants)
      : decay_(kind), dtype_(dtype), constants_(constants) {
    for (const auto& [name, beta] : {std::pair{"beta1", constants.beta1}, {"beta2", constants.beta2}}) {
      require<ValueError>(beta >= 0 && beta < 1, "{}: {} must be in [0, 1), got {}", this->kind(), name, beta);
    }
    // Below the smallest normal number epsilon may be flushed to zero, and a zero gradient would give 0 / 0.
    const double smallest =
        dtype == Dtype::f64 ? std::numeric_limits<double>::min() : double{std::numeric_limits<float>::min()};
    const double largest =
        dtype == Dtype::f64 ? std::numeric_limits<double>::max() : double{std::numeric_limits<float>::max()};
    require<ValueError>(constants.epsilon >= smallest && constants.epsilon <= largest,
                        "{}: epsilon must be > 0 and a normal {} number, got {}", this->kind(),
                        name_of(accumulation_dtype(dtype)), constants.epsilon);
    detail::check_not_negative(this->kind(), "weight_decay", constants.weight_decay);
  }

  std::string_view kind() const override { return decay_ == WeightDecay::coupled ? "adam" : "adamw"; }
  int moment_count() const override { return 2; }

  OptimizerOptions options() const override {
    return {{"beta1", constants_.beta1},
            {"beta2", constants_.beta2},
            {"epsilon", constants_.epsilon},
            {"weight_decay", constants_.weight_decay}};
  }

  std::unique_ptr<UpdateRule> with_options(const OptimizerOptions& options) const override {
    return std::make_unique<AdamRule>(decay_, dtype_,
                                      AdamConstants{.beta1 = options.at("beta1"),
                                                    .beta2 = options.at("beta2"),
                                                    .epsilon = options.at("epsilon"),
                                                    .weight_decay = options.at("weight_decay")});
  }

  void reserve(std::size_t parameters) override { scalars_.reserve(parameters); }

  void run(const OptimizerPass& pass) override {
    scalars_.clear();
    for (std::size_t i = 0; i < pass.steps.size(); ++i) {
      scalars_.push_back(kernels::adam_scalars(pass.learning_rate, pass.steps[i], pass.gradient_factors[i],
                                               constants_.beta1, constants_.beta2, decoupled_decay()));
    }
    const kernels::AdamStep args{.parameters = pass.parameters,
                                 .scalars = scalars_,
                                 .device_scalars = static_cast<const kernels::AdamScalars*>(pass.device_scalars),
                                 .m = pass.moments[0],
                                 .v = pass.moments[1],
                                 .beta1 = constants_.beta1,
                                 .beta2 = constants_.beta2,
                                 .epsilon = constants_.epsilon,
                                 .coupled_decay = decay_ == WeightDecay::coupled ? constants_.weight_decay : 0};
    dispatch(pass.context, [&](const auto& execution) { kernels::adam_step(execution, args); });
  }

  std::size_t scalar_bytes() const override { return sizeof(kernels::AdamScalars); }

  void advance(const Context& context, const kernels::DeviceProgress& progress, void* scalars) const override {
    const kernels::AdvanceAdam args{.progress = progress,
                                    .beta1 = constants_.beta1,
                                    .beta2 = constants_.beta2,
                                    .decoupled_decay = decoupled_decay(),
                                    .scalars = static_cast<kernels::AdamScalars*>(scalars)};
    dispatch(context, [&](const auto& execution) {
      if constexpr (std::is_same_v<decltype(execution), const CudaExecution&>) kernels::advance_adam(execution, args);
    });
  }

 private:
  double decoupled_decay() const { return decay_ == WeightDecay::coupled ? 0 : constants_.weight_decay; }

  WeightDecay decay_;
  Dtype dtype_;
  AdamConstants constants_;
  std::vector<kernels::AdamScalars> scalars_;
};

template <class Options>
std::unique_ptr<UpdateRule> make_rule(WeightDecay kind, const ParameterSet& parameters, const Options& options) {
  return std::make_unique<AdamRule>(kind, parameters.dtype(),
                                    AdamConstants{.beta1 = options.beta1,
                                                  .beta2 = options.beta2,
                                                  .epsilon = options.epsilon,
                                                  .weight_decay = options.weight_decay});
}

}  // namespace

Adam::Adam(const ParameterSet& parameters, const AdamOptions& options)
    : Optimizer(parameters, options.learning_rate, make_rule(WeightDecay::coupled, parameters, options),
                options.skip_nonfinite) {}

AdamW::AdamW(const ParameterSet& parameters, const AdamWOptions& options)
    : Optimizer(parameters, options.learning_rate, make_rule(WeightDecay::decoupled, parameters, options),
                options.skip_nonfinite) {}

}  // namespace fusegrad
