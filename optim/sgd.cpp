#include <type_traits>
#include <vector>

#include <fusegrad/ops/dispatch.h>
#include <fusegrad/optim/sgd.h>
#include <fusegrad/optim/update_functions.h>
#include <fusegrad/optim/update_rule.h>

namespace fusegrad {
namespace {

using detail::OptimizerOptions;
using detail::OptimizerPass;
using detail::require;
using detail::UpdateRule;

constexpr std::string_view kKind = "sgd";

class SgdRule final : public UpdateRule {
 public:
  explicit SgdRule(const SgdOptions& options) : options_(options) {
    detail::check_not_negative(kKind, "momentum", options.momentum);
    detail::check_not_negative(kKind, "weight_decay", options.weight_decay);
    require<ValueError>(std::isfinite(options.dampening), "{}: dampening must be finite, got {}", kKind,
                        options.dampening);
    require<ValueError>(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
                        "{}: nesterov needs momentum > 0 and dampening 0, got momentum {} and dampening {}", kKind,
                        options.momentum, options.dampening);
  }

  std::string_view kind() const override { return kKind; }
  int moment_count() const override { return options_.momentum > 0 ? 1 : 0; }

  OptimizerOptions options() const override {
    return {{"momentum", options_.momentum},
            {"dampening", options_.dampening},
            {"nesterov", options_.nesterov ? 1 : 0},
            {"weight_decay", options_.weight_decay}};
  }

  std::unique_ptr<UpdateRule> with_options(const OptimizerOptions& options) const override {
    const double nesterov = options.at("nesterov");
    require<ValueError>(nesterov == 0 || nesterov == 1, "{}: nesterov must be 0 or 1, got {}", kKind, nesterov);
    return std::make_unique<SgdRule>(SgdOptions{.momentum = options.at("momentum"),
                                                .dampening = options.at("dampening"),
                                                .nesterov = nesterov == 1,
                                                .weight_decay = options.at("weight_decay")});
  }

  void reserve(std::size_t parameters) override { scalars_.reserve(parameters); }

  void run(const OptimizerPass& pass) override {
    scalars_.clear();
    for (std::size_t i = 0; i < pass.steps.size(); ++i) {
      scalars_.push_back(kernels::sgd_scalars(pass.learning_rate, pass.steps[i], pass.gradient_factors[i],
                                              options_.momentum, options_.dampening));
    }
    const kernels::SgdStep args{.parameters = pass.parameters,
                                .scalars = scalars_,
                                .device_scalars = static_cast<const kernels::SgdScalars*>(pass.device_scalars),
                                .kind = momentum_kind(),
                                .velocity = pass.moments.empty() ? Vector{} : pass.moments[0],
                                .momentum = options_.momentum,
                                .weight_decay = options_.weight_decay};
    dispatch(pass.context, [&](const auto& execution) { kernels::sgd_step(execution, args); });
  }

  std::size_t scalar_bytes() const override { return sizeof(kernels::SgdScalars); }

  void advance(const Context& context, const kernels::DeviceProgress& progress, void* scalars) const override {
    const kernels::AdvanceSgd args{.progress = progress,
                                   .momentum = options_.momentum,
                                   .dampening = options_.dampening,
                                   .scalars = static_cast<kernels::SgdScalars*>(scalars)};
    dispatch(context, [&](const auto& execution) {
      if constexpr (std::is_same_v<decltype(execution), const CudaExecution&>) kernels::advance_sgd(execution, args);
    });
  }

 private:
  kernels::Momentum momentum_kind() const {
    if (options_.momentum == 0) return kernels::Momentum::none;
    return options_.nesterov ? kernels::Momentum::nesterov : kernels::Momentum::classic;
  }

  SgdOptions options_;
  std::vector<kernels::SgdScalars> scalars_;
};

}  // namespace

Sgd::Sgd(const ParameterSet& parameters, const SgdOptions& options)
    : Optimizer(parameters, options.learning_rate, std::make_unique<SgdRule>(options), options.skip_nonfinite) {}

}  // namespace fusegrad
