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
using kernels::InputGradientWay;
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

std::string_view file_name_of(const InputGradientWay& way) {
  return way.leaves_bias ? "pass, bias below" : name_of(way.strategy);
}
std::string name_of_way(const InputGradientWay& way) { return std::string(file_name_of(way)); }
std::string name_of_way(BiasWay way) { return way == BiasWay::in_product ? "BGRADB" : "product and column sum"; }

/// Times every way and reports them, the one to use first.
template <class Way, class Run>
PlanReport measure(const CudaExecution& aside, Stopwatch& stopwatch, const StepOperands& operands,
                   std::vector<Way>& ways, const Run& run) {
  std::vector<std::function<void()>> calls;
  for (const Way& way : ways) {
    run(way);  // makes the plans of its products
    calls.emplace_back([&run, &way] { run(way); });
  }
  stopwatch.stream().synchronize();
  const std::vector<double> us = stopwatch.compare(calls, kBudgetUs, stopwatch.is_cold(operands.bytes()));
  stopwatch.stream().synchronize();
  ++aside.state.counters().plans_measured;
  const std::vector<int> order = order_of(us);
  std::vector<Way> sorted;
  PlanReport report;
  for (const int index : order) {
    const auto i = static_cast<std::size_t>(index);
    sorted.push_back(ways[i]);
    report.candidates.push_back({name_of_way(ways[i]), us[i]});
  }
  ways = std::move(sorted);
  report.kind = PlanKind::step;
  report.origin = PlanOrigin::measured;
  return report;
}

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

std::string_view file_name_of(BiasWay way) { return way == BiasWay::in_product ? "in product" : "column sum"; }

template <class Way>
std::optional<Way> way_from(std::string_view name);

template <>
std::optional<InputGradientWay> way_from(std::string_view name) {
  for (const Strategy strategy : {Strategy::epilogue, Strategy::split, Strategy::pass}) {
    if (name == name_of(strategy)) return InputGradientWay{.strategy = strategy};
  }
  constexpr InputGradientWay kLeavesBias{.leaves_bias = true};
  if (name == file_name_of(kLeavesBias)) return kLeavesBias;
  return std::nullopt;
}

template <>
std::optional<BiasWay> way_from(std::string_view name) {
  for (const BiasWay way : {BiasWay::in_product, BiasWay::column_sum}) {
    if (name == file_name_of(way)) return way;
  }
  return std::nullopt;
}

}  // namespace

bool LinearWays::chooses(const CudaState& state) const {
  return measures(state) || !input_gradients_.empty() || !bias_gradients_.empty() ||
         !proposed_input_gradients_.empty() || !proposed_bias_gradients_.empty();
}

const InputGradientWay* LinearWays::input_gradient(const CudaExecution& execution, const LinearInputGradient& args,
                                                   Strategy preferred, bool fusable) {
  const PlanKey key = key_of(args);
  if (const auto found = input_gradients_.find(key); found != input_gradients_.end()) return &found->second.way;

  const bool with_bias = args.bias.data != nullptr;
  std::vector<InputGradientWay> ways{{.strategy = preferred}};
  const auto add = [&](const InputGradientWay& way) {
    if (!way.same_as(ways.front())) ways.push_back(way);
  };
  add({.strategy = Strategy::pass});
  if (with_bias && args.bias_inputs > 0 && args.activation != Activation::none) add({.leaves_bias = true});
  if (fusable && (!with_bias || args.bias.dtype == args.dx.dtype)) add({.strategy = Strategy::epilogue});
  if (fusable && with_bias && args.bias_inputs > 0) add({.strategy = Strategy::split});

  if (const auto read = proposed_input_gradients_.find(key); read != proposed_input_gradients_.end()) {
    Choice<InputGradientWay> choice = std::move(read->second);
    proposed_input_gradients_.erase(read);
    // The key does not hold all that decides what is possible.
    if (std::ranges::any_of(ways, [&](const InputGradientWay& way) { return way.same_as(choice.way); })) {
      ++execution.state.counters().plans_loaded;
      choice.way.note = *texts_
                             .insert(detail::format("dx: {}{}; from a plan file: {}", name_of_way(choice.way),
                                                    choice.way.strategy == Strategy::pass ? "" : " in the product",
                                                    text_of(choice.report)))
                             .first;
      return &input_gradients_.emplace(key, std::move(choice)).first->second.way;
    }
    ++execution.state.counters().rejected_candidates;
    execution.state.warn(detail::format("plan file: the strategy {} was rejected for {}: it cannot do that",
                                        name_of_way(choice.way), choice.report.what));
  }
  if (!measures(execution.state) || execution.state.capturing()) return nullptr;

  Choice<InputGradientWay> choice{.way = ways.front()};
  if (ways.size() > 1) {
    const Aside lines(execution.state);
    Stopwatch& stopwatch = execution.state.stopwatch();
    const CudaExecution aside{stopwatch.stream().get(), execution.state};
    const CountersKept kept(execution.state.counters());
    StepOperands operands(aside, execution.state.backend());
    LinearInputGradient step = args;
    LinearWeightGradient below;
    const std::int64_t inputs = with_bias ? args.bias_inputs : 0;
    const auto assign = [&] {
      step.dz.data = operands.take(args.dz.data, args.dz.rows * args.dz.ld, args.dz.dtype);
      step.w.data = operands.take(args.w.data, args.w.rows * args.w.ld, args.w.dtype);
      step.dx.data = operands.take(args.dx.data, args.dx.rows * args.dx.ld, args.dx.dtype);
      step.c.data = args.c.data == args.dx.data ? step.dx.data
                                                : operands.take(args.c.data, args.c.rows * args.c.ld, args.c.dtype);
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
      const kernels::FusedResult result = run_input_gradient(aside, step, way);
      if (inputs == 0) return;
      LinearWeightGradient next = below;
      if (!result.bias_gradient) {
        next.bias = step.bias;
        next.bias_c = step.bias_c;
      }
      linear_weight_gradient(aside, next);
    };
    choice.report = measure(aside, stopwatch, operands, ways, run);
    choice.way = ways.front();
    choice.report.what = detail::format("backward step, dx {} x {} x {} {}", args.dx.rows, args.dx.cols, args.dz.cols,
                                        fusegrad::name_of(args.dx.dtype));
    if (inputs != 0) choice.report.what += detail::format(", with dw {} x {} below", args.dx.cols, inputs);
    choice.way.note =
        *texts_
             .insert(detail::format("dx: {}{}; measured{}: {}", name_of_way(choice.way),
                                    choice.way.strategy == Strategy::pass ? "" : " in the product",
                                    inputs != 0 ? " with the weight gradient below" : "", text_of(choice.report)))
             .first;
  }
  return &input_gradients_.emplace(key, std::move(choice)).first->second.way;
}

const BiasWay* LinearWays::bias_gradient(const CudaExecution& execution, const LinearWeightGradient& args) {
  const PlanKey key = key_of(args);
  if (const auto found = bias_gradients_.find(key); found != bias_gradients_.end()) return &found->second.way;
  if (const auto read = proposed_bias_gradients_.find(key); read != proposed_bias_gradients_.end()) {
    ++execution.state.counters().plans_loaded;
    Choice<BiasWay> choice = std::move(read->second);
    proposed_bias_gradients_.erase(read);
    return &bias_gradients_.emplace(key, std::move(choice)).first->second.way;
  }
  if (!measures(execution.state) || execution.state.capturing()) return nullptr;
  const Aside lines(execution.state);
  Stopwatch& stopwatch = execution.state.stopwatch();
  const CudaExecution aside{stopwatch.stream().get(), execution.state};
  const CountersKept kept(execution.state.counters());
  StepOperands operands(aside, execution.state.backend());
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
  std::vector<BiasWay> ways{BiasWay::in_product, BiasWay::column_sum};
  Choice<BiasWay> choice;
  choice.report =
      measure(aside, stopwatch, operands, ways, [&](BiasWay way) { run_weight_gradient(aside, step, way); });
  choice.report.what = detail::format("bias gradient with dw {} x {} x {} {}", args.dw.rows, args.dw.cols, args.dz.rows,
                                      fusegrad::name_of(args.dz.dtype));
  choice.way = ways.front();
  return &bias_gradients_.emplace(key, std::move(choice)).first->second.way;
}

std::vector<PlanReport> LinearWays::reports() const {
  std::vector<PlanReport> all;
  const auto add = [&](const auto& choices) {
    for (const auto& [key, choice] : choices) {
      if (!choice.report.candidates.empty()) all.push_back(choice.report);
    }
  };
  add(input_gradients_);
  add(bias_gradients_);
  std::ranges::sort(all, {}, &PlanReport::what);
  return all;
}

std::vector<PlanRecord> LinearWays::records() const {
  std::vector<PlanRecord> all;
  const auto add = [&](PlanSubject subject, const auto& choices) {
    for (const auto& [key, choice] : choices) {
      if (choice.report.candidates.empty()) continue;
      all.push_back({.subject = subject,
                     .key = {key.words.begin(), key.words.end()},
                     .way = std::string(file_name_of(choice.way)),
                     .what = choice.report.what,
                     .candidates = choice.report.candidates});
    }
  };
  add(PlanSubject::input_gradient, input_gradients_);
  add(PlanSubject::input_gradient, proposed_input_gradients_);
  add(PlanSubject::bias_gradient, bias_gradients_);
  add(PlanSubject::bias_gradient, proposed_bias_gradients_);
  return all;
}

bool LinearWays::has_measured() const {
  const auto any = [](const auto& choices) {
    return std::ranges::any_of(choices,
                               [](const auto& choice) { return choice.second.report.origin == PlanOrigin::measured; });
  };
  return any(input_gradients_) || any(bias_gradients_);
}

int LinearWays::propose(const std::vector<PlanRecord>& records) {
  int taken = 0;
  const auto put = [&]<class Way>(const PlanRecord& record, const Choices<Way>& known, Choices<Way>& proposed) {
    const std::optional<PlanKey> key = detail::key_of(record);
    const std::optional<Way> way = way_from<Way>(record.way);
    if (!key || !way || record.candidates.empty() || known.contains(*key)) return;
    const PlanReport report{
        .what = record.what, .candidates = record.candidates, .kind = PlanKind::step, .origin = PlanOrigin::file};
    proposed.insert_or_assign(*key, Choice<Way>{.way = *way, .report = report});
    ++taken;
  };
  for (const PlanRecord& record : records) {
    if (record.subject == PlanSubject::input_gradient) put(record, input_gradients_, proposed_input_gradients_);
    if (record.subject == PlanSubject::bias_gradient) put(record, bias_gradients_, proposed_bias_gradients_);
  }
  return taken;
}

std::shared_ptr<LinearWays> make_linear_ways() { return std::make_shared<LinearWays>(); }

}  // namespace fusegrad::detail
