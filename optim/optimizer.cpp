#include <algorithm>
#include <optional>
#include <utility>

#include <fusegrad/autograd/branches.h>
#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/memory.h>
#include <fusegrad/autograd/parameter_store.h>
#include <fusegrad/autograd/step_run.h>
#include <fusegrad/ops/dispatch.h>
#include <fusegrad/optim/device_progress.h>
#include <fusegrad/optim/update_rule.h>

namespace fusegrad {

using detail::Branches;
using detail::carve;
using detail::check_not_negative;
using detail::OptimizerOptions;
using detail::ParameterSlot;
using detail::ParameterStore;
using detail::require;
using detail::UpdateRule;

namespace {

static_assert(kernels::kSlotElements == ParameterStore::kSlotElements);

constexpr std::string_view kLearningRate = "learning_rate";

/// Elements from which on a pass is long enough to run on its own: beside products that leave it no room it would only
/// slow them down.
constexpr std::int64_t kFillsGpu = 30'000'000;

/// Zeroed flat buffers, laid out as the set's.
std::vector<Tensor> make_moments(ParameterStore& store, int count) {
  std::vector<Tensor> moments;
  moments.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    moments.push_back(Tensor::zeros(store.context(), {store.flat_size()}, accumulation_dtype(store.dtype())));
  }
  return moments;
}

/// The state of every parameter, in the set's order.
std::vector<const OptimizerState::Slot*> match_by_name(const OptimizerState& state, const ParameterSet& parameters) {
  std::vector<const OptimizerState::Slot*> matched(parameters.size());
  for (const OptimizerState::Slot& slot : state.parameters) {
    require<ValueError>(parameters.contains(slot.name), "{}: the state has a parameter \"{}\", the set has none",
                        state.kind, slot.name);
    const OptimizerState::Slot*& place = matched[parameters[slot.name].index()];
    require<ValueError>(!place, "{}: the state has two parameters named \"{}\"", state.kind, slot.name);
    place = &slot;
  }
  for (std::size_t i = 0; i < matched.size(); ++i) {
    require<ValueError>(matched[i], "{}: the state has nothing about parameter \"{}\"", state.kind,
                        parameters[i].name());
  }
  return matched;
}

void check_slot(const OptimizerState::Slot& slot, const ParameterSlot& parameter, const UpdateRule& rule, Dtype dtype) {
  require<ValueError>(slot.steps >= 0, "{}: \"{}\" has a step count of {}", rule.kind(), slot.name, slot.steps);
  require<ValueError>(std::cmp_equal(slot.moments.size(), rule.moment_count()),
                      "{}: \"{}\" needs {} moments, the state has {}", rule.kind(), slot.name, rule.moment_count(),
                      slot.moments.size());
  for (const Tensor& moment : slot.moments) {
    require<ShapeError>(moment.defined() && moment.shape() == parameter.shape,
                        "{}: a moment of \"{}\" must have shape {}, got {}", rule.kind(), slot.name, parameter.shape,
                        moment.shape());
    require<DtypeError>(moment.dtype() == dtype, "{}: a moment of \"{}\" must be {}, got {}", rule.kind(), slot.name,
                        name_of(dtype), name_of(moment.dtype()));
  }
}

}  // namespace

class Optimizer::Impl {
 public:
  Impl(const ParameterSet& parameters, double learning_rate, std::unique_ptr<UpdateRule> rule,
       std::optional<bool> skip_nonfinite)
      : parameters_(parameters), rule_(std::move(rule)), skip_nonfinite_(skip_nonfinite) {
    const detail::OutsideStep outside(context().state());
    set_learning_rate(learning_rate);
    store().lay_out();
    if (context().device().type == DeviceType::cuda) {
      progress_.emplace(context(), parameters_.size(), rule_->scalar_bytes(), learning_rate);
    }
    const std::size_t count = parameters_.size();
    moments_ = make_moments(store(), rule_->moment_count());
    steps_.resize(count);
    active_.reserve(count);
    groups_.reserve(count);
    slots_.reserve(count);
    next_steps_.reserve(count);
    gradient_factors_.reserve(count);
    views_.reserve(moments_.size());
    rule_->reserve(count);
  }

  StepReport step() {
    const detail::ProfileRange range = context().state().profile(detail::ProfilePhase::optimizer, rule_->kind());
    StepReport report;
    const bool scaled = collect();
    report.stepped = static_cast<std::int64_t>(active_.size());
    report.skipped = static_cast<std::int64_t>(parameters_.size() - active_.size());
    const bool guarded = skip_nonfinite_.value_or(scaled);
    require<StateError>(
        !guarded || !context().state().step_run() || !progress_,
        "{}: a captured step cannot look for gradients that are not finite, because the host would wait "
        "for the answer; set skip_nonfinite to false",
        rule_->kind());
    const std::int64_t bad = guarded ? first_nonfinite() : -1;
    if (bad >= 0) {
      report = {.applied = false,
                .skipped = static_cast<std::int64_t>(parameters_.size()),
                .nonfinite = parameters_[active_[static_cast<std::size_t>(bad)]]};
    } else if (!active_.empty()) {
      update();
    }
    parameters_.clear_gradients();
    return report;
  }

  std::int64_t state_bytes() const {
    std::int64_t bytes = 0;
    for (const Tensor& moment : moments_) bytes += moment.bytes();
    return bytes;
  }

  const ParameterSet& parameters() const { return parameters_; }
  double learning_rate() const { return learning_rate_; }
  void set_learning_rate(double learning_rate) {
    check_not_negative(rule_->kind(), kLearningRate, learning_rate);
    if (progress_) {
      require<StateError>(
          !context().state().step_run(),
          "{}: the learning rate was set inside a step function; a graph would set it to the same value "
          "each time: set it between the calls",
          rule_->kind());
      if (learning_rate != learning_rate_) progress_->set_learning_rate(learning_rate);
    }
    learning_rate_ = learning_rate;
  }

  std::int64_t steps(const Parameter& parameter) const {
    require<ValueError>(parameter.defined() && &parameter.store() == &store(),
                        "{}: the parameter is not of this optimizer's set", rule_->kind());
    return all_steps()[parameter.index()];
  }

  OptimizerState state() const {
    OptimizerState state{.kind = std::string(rule_->kind()), .options = rule_->options()};
    state.options.emplace(kLearningRate, learning_rate_);
    const std::vector<std::int64_t> steps = all_steps();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const ParameterSlot& slot = store().slot(i);
      OptimizerState::Slot& out = state.parameters.emplace_back();
      out.name = slot.name;
      out.steps = steps[i];
      for (const Tensor& moment : moments_) out.moments.push_back(carve(moment, slot.offset, slot.shape).clone());
    }
    return state;
  }

  void load_state(const OptimizerState& state) {
    require<ValueError>(state.kind == rule_->kind(), "{}: the state is of kind \"{}\"", rule_->kind(), state.kind);
    OptimizerOptions options = state.options;
    const auto rate = options.find(kLearningRate);
    require<ValueError>(rate != options.end(), "{}: the state lacks the option learning_rate", rule_->kind());
    const double learning_rate = rate->second;
    check_not_negative(rule_->kind(), kLearningRate, learning_rate);
    options.erase(rate);
    for (const auto& [name, value] : rule_->options()) {
      require<ValueError>(options.contains(name), "{}: the state lacks the option {}", rule_->kind(), name);
    }
    require<ValueError>(options.size() == rule_->options().size(), "{}: the state has options that are unknown",
                        rule_->kind());
    std::unique_ptr<UpdateRule> rule = rule_->with_options(options);

    const std::vector<const OptimizerState::Slot*> slots = match_by_name(state, parameters_);
    const Dtype dtype = accumulation_dtype(parameters_.dtype());
    for (std::size_t i = 0; i < slots.size(); ++i) check_slot(*slots[i], store().slot(i), *rule, dtype);
    std::vector<Tensor> moments = make_moments(store(), rule->moment_count());
    std::vector<std::int64_t> steps(slots.size());
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const ParameterSlot& slot = store().slot(i);
      steps[i] = slots[i]->steps;
      for (std::size_t k = 0; k < moments.size(); ++k) {
        carve(moments[k], slot.offset, slot.shape).copy_from(slots[i]->moments[k]);
      }
    }
    rule->reserve(slots.size());
    views_.reserve(moments.size());
    std::optional<detail::DeviceProgress> progress;
    if (progress_) {
      progress.emplace(context(), slots.size(), rule->scalar_bytes(), learning_rate);
      progress->set_steps(steps);
    }

    rule_ = std::move(rule);
    moments_ = std::move(moments);
    steps_ = std::move(steps);
    if (progress) progress_ = std::move(progress);
    ++*revision_;
    learning_rate_ = learning_rate;
  }

 private:
  /// Consecutive entries of active_ that are stepped together.
  struct Group {
    std::size_t begin;
    std::size_t end;
    std::int64_t ready;  ///< point of the context's branches; 0: now
    double gradient_factor;
  };

  ParameterStore& store() const { return parameters_.store(); }
  const Context& context() const { return parameters_.context(); }
  std::vector<std::int64_t> all_steps() const { return progress_ ? progress_->steps() : steps_; }

  /// Lists the parameters to step. True if any gradient carries a loss scale other than 1.
  bool collect() {
    bool scaled = false;
    active_.clear();
    slots_.clear();
    next_steps_.clear();
    gradient_factors_.clear();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const ParameterSlot& slot = store().slot(i);
      if (slot.frozen || !slot.gradient_valid) continue;
      active_.push_back(i);
      slots_.push_back({.offset = slot.offset, .size = slot.shape.size()});
      next_steps_.push_back(steps_[i] + 1);
      gradient_factors_.push_back(1 / slot.gradient_scale);
      scaled |= slot.gradient_scale != 1;
    }
    return scaled;
  }

  std::int64_t first_nonfinite() const {
    std::int64_t first = -1;
    dispatch(parameters_.context(), [&](const auto& execution) {
      first = kernels::first_nonfinite(execution, vector_of(store().gradients()), slots_);
    });
    return first;
  }

  void update() {
    // The kernels write to the flat buffers, but what tapes have saved, and compare the version of, are the slots.
    for (const std::size_t i : active_) {
      ParameterSlot& slot = store().slot(i);
      slot.master.mutable_raw();
      if (is_rounded(parameters_.dtype())) slot.value.mutable_raw();
    }
    views_.clear();
    for (Tensor& moment : moments_) views_.push_back(mutable_vector_of(moment));
    if (progress_) {
      update_on_device();
      return;
    }
    rule_->run({.context = context(),
                .parameters = flat(slots_),
                .moments = views_,
                .steps = next_steps_,
                .gradient_factors = gradient_factors_,
                .learning_rate = learning_rate_});
    for (std::size_t k = 0; k < active_.size(); ++k) steps_[active_[k]] = next_steps_[k];
  }

  /// The same with counts and scalars in the GPU's memory; on a branch of their own where there are branches.
  void update_on_device() {
    if (detail::StepRun* run = context().state().step_run()) run->depends_on(revision_);
    std::int64_t elements = 0;
    for (const kernels::FlatSlot& slot : slots_) elements += slot.size;
    Branches* branches = context().state().branches();
    if (elements >= kFillsGpu && branches && !branches->made_room()) branches = nullptr;
    group(branches);
    // The counts must not run ahead of labels that are found to be wrong in forward.
    const std::int64_t begin = branches ? branches->sweep_begin() : 0;
    const std::int64_t now = branches ? branches->mark() : 0;
    std::optional<Turn> turn;
    if (branches) turn.emplace(*branches, begin != 0 ? begin : now);
    double factor = 1;
    for (const Group& group : groups_) {
      if (group.gradient_factor != factor) progress_->set_gradient_factor(factor = group.gradient_factor);
      const std::size_t first = active_[group.begin];
      rule_->advance(context(), progress_->view(first, group.end - group.begin), progress_->scalars(first));
    }
    if (factor != 1) progress_->set_gradient_factor(1);
    for (const Group& group : groups_) {
      if (branches) branches->wait_in_update(group.ready != 0 ? group.ready : now);
      rule_->run({.context = context(),
                  .parameters = flat(std::span(slots_).subspan(group.begin, group.end - group.begin)),
                  .moments = views_,
                  .device_scalars = progress_->scalars(active_[group.begin])});
    }
  }

  /// Cuts the active parameters into groups: neighbours in the set that can be stepped at the same time; those first
  /// that are ready first.
  void group(const Branches* branches) {
    groups_.clear();
    for (std::size_t k = 0; k < active_.size(); ++k) {
      const ParameterSlot& slot = store().slot(active_[k]);
      const std::int64_t ready = branches && branches->is_valid(slot.ready) ? slot.ready : 0;
      const double factor = gradient_factors_[k];
      if (!groups_.empty() && active_[k] == active_[k - 1] + 1 && groups_.back().ready == ready &&
          groups_.back().gradient_factor == factor) {
        groups_.back().end = k + 1;
      } else {
        groups_.push_back({k, k + 1, ready, factor});
      }
    }
    const auto order = [](const Group& group) {
      return std::pair(group.ready != 0 ? group.ready : INT64_MAX, group.begin);
    };
    std::ranges::sort(groups_, {}, order);
  }

  kernels::FlatParameters flat(std::span<const kernels::FlatSlot> slots) {
    return {.slots = slots,
            .gradients = vector_of(store().gradients()),
            .masters = mutable_vector_of(store().masters()),
            .values = is_rounded(parameters_.dtype()) ? mutable_vector_of(store().values()) : Vector{}};
  }

  /// Work goes to the optimizers' branch while this lives.
  class Turn {
   public:
    Turn(Branches& branches, std::int64_t point) : branches_(branches) { branches_.begin_update(point); }
    ~Turn() { branches_.end_update(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Branches& branches_;
  };

  static bool is_rounded(Dtype dtype) { return dtype != accumulation_dtype(dtype); }

  ParameterSet parameters_;
  std::unique_ptr<UpdateRule> rule_;
  std::optional<bool> skip_nonfinite_;
  double learning_rate_ = 0;
  std::vector<Tensor> moments_;
  std::vector<std::int64_t> steps_;                 // one a parameter; on a GPU progress_ has them
  std::optional<detail::DeviceProgress> progress_;  // on a GPU
  // Changes with what a captured step has of this: options, and where moments and counts are.
  std::shared_ptr<std::int64_t> revision_ = std::make_shared<std::int64_t>(0);

  // What the current step works on, one entry a stepped parameter; members so that a step allocates nothing.
  std::vector<std::size_t> active_;
  std::vector<Group> groups_;
  std::vector<kernels::FlatSlot> slots_;
  std::vector<std::int64_t> next_steps_;
  std::vector<double> gradient_factors_;
  std::vector<Vector> views_;
};

Optimizer::Optimizer(const ParameterSet& parameters, double learning_rate, std::unique_ptr<UpdateRule> rule,
                     std::optional<bool> skip_nonfinite)
    : impl_(std::make_unique<Impl>(parameters, learning_rate, std::move(rule), skip_nonfinite)) {}
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;
Optimizer::~Optimizer() = default;

Optimizer::Impl& Optimizer::impl() const {
  require<StateError>(impl_ != nullptr, "optimizer: it was moved from");
  return *impl_;
}

StepReport Optimizer::step() { return impl().step(); }
const ParameterSet& Optimizer::parameters() const { return impl().parameters(); }
double Optimizer::learning_rate() const { return impl().learning_rate(); }
void Optimizer::set_learning_rate(double learning_rate) { impl().set_learning_rate(learning_rate); }
std::int64_t Optimizer::steps(const Parameter& parameter) const { return impl().steps(parameter); }
std::int64_t Optimizer::state_bytes() const { return impl().state_bytes(); }
OptimizerState Optimizer::state() const { return impl().state(); }
void Optimizer::load_state(const OptimizerState& state) { impl().load_state(state); }

}  // namespace fusegrad
