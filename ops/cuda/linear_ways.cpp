#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/cuda/stopwatch.h>
#include <fusegrad/ops/cuda/linear_ways.h>
#include <fusegrad/ops/cuda/step_operands.h>
#include <fusegrad/ops/plan_order.h>

namespace fusegrad::detail {
namespace {

using kernels::BiasWay;
using kernels::ForwardWay;
using kernels::InputGradientWay;
using kernels::LinearForward;
using kernels::LinearInputGradient;
using kernels::LinearWeightGradient;

constexpr double kBudgetUs = 300000;  // for all rounds of one step

/// Restores counters that measurement would move.
class CountersKept {
 public:
  explicit CountersKept(Counters& counters) : counters_(counters), before_(counters) {}
  ~CountersKept() {
    before_.plan_misses = counters_.plan_misses;
    before_.plan_evictions = counters_.plan_evictions;
    before_.plans_measured = counters_.plans_measured;
    before_.plans_loaded = counters_.plans_loaded;
    before_.rejected_candidates = counters_.rejected_candidates;
    counters_ = before_;
  }
  CountersKept(const CountersKept&) = delete;
  CountersKept& operator=(const CountersKept&) = delete;

 private:
  Counters& counters_;
  Counters before_;
};

// Names: of a way in plan files and reports, and of what it is for in notes.
std::string_view name_of_way(const ForwardWay& way) { return way.pass ? "product and pass" : "in product"; }
std::string_view name_of_way(const InputGradientWay& way) {
  return way.leaves_bias ? "pass, bias below" : name_of(way.strategy);
}
std::string_view name_of_way(const BiasWay& way) { return way.column_sum ? "product and column sum" : "BGRADB"; }

std::string text_of(const ForwardWay& way) { return detail::format("y: {}", name_of_way(way)); }
std::string text_of(const InputGradientWay& way) {
  return detail::format("dx: {}{}", name_of_way(way), way.strategy == Strategy::pass ? "" : " in the product");
}

/// The way of that name.
template <class Way>
std::optional<Way> way_from(std::string_view name, std::initializer_list<Way> all) {
  for (const Way& way : all) {
    if (name == name_of_way(way)) return way;
  }
  return std::nullopt;
}
template <class Way>
std::optional<Way> way_from(std::string_view name) {
  if constexpr (std::is_same_v<Way, InputGradientWay>) {
    return way_from<Way>(name, {{.strategy = Strategy::epilogue},
                                {.strategy = Strategy::split},
                                {.strategy = Strategy::pass},
                                {.strategy = Strategy::pass, .leaves_bias = true}});
  } else {
    return way_from<Way>(name, {{false}, {true}});
  }
}

/// The ways of one step, timed aside from what the context is doing: on the stopwatch's stream, on copies of the step's
/// operands, with the counters left as they were.
class Timing {
 public:
  explicit Timing(const CudaExecution& execution)
      : aside_(execution.state),
        stopwatch_(execution.state.stopwatch()),
        execution_{stopwatch_.stream().get(), execution.state},
        kept_(execution.state.counters()),
        operands_(execution_, execution.state.backend()) {}
  Timing(const Timing&) = delete;
  Timing& operator=(const Timing&) = delete;

  const CudaExecution& execution() const { return execution_; }
  StepOperands& operands() { return operands_; }

  /// Times run(way) for every way. Reports them, and sorts `ways`, the one to use first.
  template <class Way, class Run>
  PlanReport measure(std::vector<Way>& ways, const Run& run) {
    std::vector<std::function<void()>> calls;
    for (const Way& way : ways) {
      run(way);  // makes the plans of its products
      calls.emplace_back([&run, &way] { run(way); });
    }
    stopwatch_.stream().synchronize();
    const std::vector<double> us = stopwatch_.compare(calls, kBudgetUs, stopwatch_.is_cold(operands_.bytes()));
    stopwatch_.stream().synchronize();
    ++execution_.state.counters().plans_measured;
    std::vector<Way> sorted;
    PlanReport report;
    for (const int index : order_of(us)) {
      const auto i = static_cast<std::size_t>(index);
      sorted.push_back(ways[i]);
      report.candidates.push_back({std::string(name_of_way(ways[i])), us[i]});
    }
    ways = std::move(sorted);
    report.kind = PlanKind::step;
    report.origin = PlanOrigin::measured;
    return report;
  }

 private:
  Aside aside_;
  Stopwatch& stopwatch_;
  CudaExecution execution_;
  CountersKept kept_;
  StepOperands operands_;
};

std::string text_of(const PlanReport& report) {
  std::string text;
  for (const PlanReport::Candidate& candidate : report.candidates) {
    text += detail::format("{}{} {:.1f} us", text.empty() ? "" : ", ", candidate.name, candidate.us);
  }
  return text;
}

bool measures(const CudaState& state) {
  return state.plan_policy() == PlanPolicy::measure && !state.settings().deterministic;
}

}  // namespace

template <class F>
void LinearWays::visit(F&& f) const {
  f(forwards_);
  f(input_gradients_);
  f(bias_gradients_);
}

bool LinearWays::chooses(const CudaState& state) const {
  bool any = measures(state);
  visit([&](const auto& choices) { any = any || !choices.made.empty() || !choices.proposed.empty(); });
  return any;
}

template <class Way>
const Way* LinearWays::made(const Choices<Way>& choices, const PlanKey& key) const {
  const auto found = choices.made.find(key);
  return found == choices.made.end() ? nullptr : &found->second.way;
}

/// The choice that a file has for `key`, if it is one of `eligible`; else null.
template <class Way>
const Way* LinearWays::read(const CudaExecution& execution, Choices<Way>& choices, const PlanKey& key,
                            const std::vector<Way>& eligible) {
  const auto found = choices.proposed.find(key);
  if (found == choices.proposed.end()) return nullptr;
  Choice<Way> choice = std::move(found->second);
  choices.proposed.erase(found);
  // The key does not hold all that decides what is possible.
  if (std::ranges::any_of(eligible, [&](const Way& way) { return way.same_as(choice.way); })) {
    ++execution.state.counters().plans_loaded;
    return keep(choices, key, std::move(choice), "from a plan file");
  }
  ++execution.state.counters().rejected_candidates;
  execution.state.warn(detail::format("plan file: the strategy {} was rejected for {}: it cannot do that",
                                      name_of_way(choice.way), choice.report.what));
  return nullptr;
}

template <class Way>
const Way* LinearWays::keep(Choices<Way>& choices, const PlanKey& key, Choice<Way> choice, std::string_view how) {
  if constexpr (!std::is_same_v<Way, BiasWay>) {
    choice.way.note =
        *texts_.insert(detail::format("{}; {}: {}", text_of(choice.way), how, text_of(choice.report))).first;
  }
  return &choices.made.emplace(key, std::move(choice)).first->second.way;
}

const ForwardWay* LinearWays::forward(const CudaExecution& execution, const LinearForward& args) {
  const PlanKey key = key_of(args);
  if (const ForwardWay* way = made(forwards_, key)) return way;
  std::vector<ForwardWay> ways{{.pass = false}, {.pass = true}};
  if (const ForwardWay* way = read(execution, forwards_, key, ways)) return way;
  if (!measures(execution.state) || execution.state.capturing()) return nullptr;
  Timing timing(execution);
  StepOperands& operands = timing.operands();
  LinearForward step = args;
  const auto assign = [&] {
    step.x.data = operands.take(args.x.data, args.x.rows * args.x.ld, args.x.dtype);
    step.w.data = operands.take(args.w.data, args.w.rows * args.w.ld, args.w.dtype);
    step.b.data = operands.take(args.b.data, args.b.size, args.b.dtype);
    step.y.data = operands.take(args.y.data, args.y.rows * args.y.ld, args.y.dtype);
    const std::int64_t mask_words = mask_bytes(args.y.rows, args.y.cols) / 4;
    step.mask = static_cast<std::uint8_t*>(operands.take(args.mask, mask_words, Dtype::f32));
    const Matrix& saved = args.pre_activation;
    step.pre_activation.data = operands.take(saved.data, saved.rows * saved.ld, saved.dtype);
  };
  if (!operands.allocate(assign)) return nullptr;
  Choice<ForwardWay> choice;
  choice.report = timing.measure(ways, [&](const ForwardWay& way) { run_forward(timing.execution(), step, way); });
  choice.way = ways.front();
  choice.report.what = detail::format("forward step, {} {} x {} x {} {}", fusegrad::name_of(args.activation),
                                      args.y.rows, args.y.cols, args.x.cols, fusegrad::name_of(args.y.dtype));
  return keep(forwards_, key, std::move(choice), "measured");
}

const InputGradientWay* LinearWays::input_gradient(const CudaExecution& execution, const LinearInputGradient& args,
                                                   Strategy preferred, bool fusable) {
  const PlanKey key = key_of(args);
  if (const InputGradientWay* way = made(input_gradients_, key)) return way;

  const bool with_bias = args.bias.data != nullptr;
  std::vector<InputGradientWay> ways{{.strategy = preferred}};
  const auto add = [&](const InputGradientWay& way) {
    if (!way.same_as(ways.front())) ways.push_back(way);
  };
  add({.strategy = Strategy::pass});
  if (with_bias && args.bias_inputs > 0 && args.activation != Activation::none) add({.leaves_bias = true});
  if (fusable && (!with_bias || args.bias.dtype == args.dx.dtype)) add({.strategy = Strategy::epilogue});
  if (fusable && with_bias && args.bias_inputs > 0) add({.strategy = Strategy::split});

  if (const InputGradientWay* way = read(execution, input_gradients_, key, ways)) return way;
  if (!measures(execution.state) || execution.state.capturing()) return nullptr;
  if (ways.size() == 1)
    return &input_gradients_.made.emplace(key, Choice<InputGradientWay>{.way = ways.front()}).first->second.way;

  const std::int64_t inputs = with_bias ? args.bias_inputs : 0;
  Choice<InputGradientWay> choice;
  Timing timing(execution);
  StepOperands& operands = timing.operands();
  LinearInputGradient step = args;
  step.begin_beside = nullptr;
  LinearWeightGradient below;
  const auto assign = [&] {
    step.dz.data = operands.take(args.dz.data, args.dz.rows * args.dz.ld, args.dz.dtype);
    step.w.data = operands.take(args.w.data, args.w.rows * args.w.ld, args.w.dtype);
    step.dx.data = operands.take(args.dx.data, args.dx.rows * args.dx.ld, args.dx.dtype);
    step.c.data =
        args.c.data == args.dx.data ? step.dx.data : operands.take(args.c.data, args.c.rows * args.c.ld, args.c.dtype);
    const std::int64_t mask_words = mask_bytes(args.dx.rows, args.dx.cols) / 4;
    step.mask = static_cast<const std::uint8_t*>(operands.take(args.mask, mask_words, Dtype::f32));
    const ConstMatrix& saved = args.pre_activation;
    step.pre_activation.data = operands.take(saved.data, saved.rows * saved.ld, saved.dtype);
    step.bias.data = operands.take(args.bias.data, args.bias.size, args.bias.dtype);
    step.bias_c.data = args.bias_c.data ? step.bias.data : nullptr;
    if (inputs == 0) return;
    const Dtype wide = accumulation_dtype(args.dx.dtype);
    below.dz = step.dx;
    below.x = {operands.take(args.dx.data, args.dx.rows * inputs, args.dx.dtype), args.dx.rows, inputs, inputs,
               args.dx.dtype};
    below.dw = {operands.take(args.dx.data, args.dx.cols * inputs, wide), args.dx.cols, inputs, inputs, wide};
  };
  if (!operands.allocate(assign)) return nullptr;
  const auto run = [&](const InputGradientWay& way) {
    const kernels::FusedResult result = run_input_gradient(timing.execution(), step, way);
    if (inputs == 0) return;
    LinearWeightGradient next = below;
    if (!result.bias_gradient) {
      next.bias = step.bias;
      next.bias_c = step.bias_c;
    }
    linear_weight_gradient(timing.execution(), next);
  };
  choice.report = timing.measure(ways, run);
  choice.way = ways.front();
  choice.report.what = detail::format("backward step, dx {} x {} x {} {}", args.dx.rows, args.dx.cols, args.dz.cols,
                                      fusegrad::name_of(args.dx.dtype));
  if (inputs != 0) choice.report.what += detail::format(", with dw {} x {} below", args.dx.cols, inputs);
  return keep(input_gradients_, key, std::move(choice),
              inputs != 0 ? "measured with the weight gradient below" : "measured");
}

const BiasWay* LinearWays::bias_gradient(const CudaExecution& execution, const LinearWeightGradient& args) {
  const PlanKey key = key_of(args);
  if (const BiasWay* way = made(bias_gradients_, key)) return way;
  std::vector<BiasWay> ways{{.column_sum = false}, {.column_sum = true}};
  if (const BiasWay* way = read(execution, bias_gradients_, key, ways)) return way;
  if (!measures(execution.state) || execution.state.capturing()) return nullptr;
  Timing timing(execution);
  StepOperands& operands = timing.operands();
  LinearWeightGradient step = args;
  const auto assign = [&] {
    step.dz.data = operands.take(args.dz.data, args.dz.rows * args.dz.ld, args.dz.dtype);
    step.x.data = operands.take(args.x.data, args.x.rows * args.x.ld, args.x.dtype);
    step.dw.data = operands.take(args.dw.data, args.dw.rows * args.dw.ld, args.dw.dtype);
    step.c.data =
        args.c.data == args.dw.data ? step.dw.data : operands.take(args.c.data, args.c.rows * args.c.ld, args.c.dtype);
    step.bias.data = operands.take(args.bias.data, args.bias.size, args.bias.dtype);
    step.bias_c.data = args.bias_c.data ? step.bias.data : nullptr;
  };
  if (!operands.allocate(assign)) return nullptr;
  Choice<BiasWay> choice;
  choice.report = timing.measure(ways, [&](const BiasWay& way) { run_weight_gradient(timing.execution(), step, way); });
  choice.report.what = detail::format("bias gradient with dw {} x {} x {} {}", args.dw.rows, args.dw.cols, args.dz.rows,
                                      fusegrad::name_of(args.dz.dtype));
  choice.way = ways.front();
  return keep(bias_gradients_, key, std::move(choice), "measured");
}

std::vector<PlanReport> LinearWays::reports() const {
  std::vector<PlanReport> all;
  visit([&](const auto& choices) {
    for (const auto& [key, choice] : choices.made) {
      if (!choice.report.candidates.empty()) all.push_back(choice.report);
    }
  });
  std::ranges::sort(all, {}, &PlanReport::what);
  return all;
}

std::vector<PlanRecord> LinearWays::records() const {
  std::vector<PlanRecord> all;
  visit([&](const auto& choices) {
    for (const auto* part : {&choices.made, &choices.proposed}) {
      for (const auto& [key, choice] : *part) {
        if (choice.report.candidates.empty()) continue;
        all.push_back({.subject = choices.subject,
                       .key = {key.words.begin(), key.words.end()},
                       .way = std::string(name_of_way(choice.way)),
                       .what = choice.report.what,
                       .candidates = choice.report.candidates});
      }
    }
  });
  return all;
}

bool LinearWays::has_measured() const {
  bool any = false;
  visit([&](const auto& choices) {
    for (const auto& [key, choice] : choices.made) any = any || choice.report.origin == PlanOrigin::measured;
  });
  return any;
}

int LinearWays::propose(const std::vector<PlanRecord>& records) {
  int taken = 0;
  const auto put = [&]<class Way>(const PlanRecord& record, Choices<Way>& choices) {
    if (record.subject != choices.subject) return;
    const std::optional<PlanKey> key = detail::key_of(record);
    const std::optional<Way> way = way_from<Way>(record.way);
    if (!key || !way || record.candidates.empty() || choices.made.contains(*key)) return;
    const PlanReport report{
        .what = record.what, .candidates = record.candidates, .kind = PlanKind::step, .origin = PlanOrigin::file};
    choices.proposed.insert_or_assign(*key, Choice<Way>{.way = *way, .report = report});
    ++taken;
  };
  for (const PlanRecord& record : records) {
    put(record, forwards_);
    put(record, input_gradients_);
    put(record, bias_gradients_);
  }
  return taken;
}

std::shared_ptr<LinearWays> make_linear_ways() { return std::make_shared<LinearWays>(); }

}  // namespace fusegrad::detail
