#include <algorithm>
#include <deque>
#include <type_traits>
#include <utility>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/device.h>
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/autograd/cuda/graph.h>
#include <fusegrad/autograd/cuda/loss_history.h>
#include <fusegrad/autograd/execution.h>
#include <fusegrad/autograd/step.h>
#include <fusegrad/autograd/step_run.h>

namespace fusegrad {

using detail::Arena;
using detail::CudaState;
using detail::require;
using detail::StepRun;

namespace {

constexpr std::int64_t kKeptLosses = 1024;

/// A Step's function runs while this lives: its work may use branches, its memory is the arena's.
class Running {
 public:
  Running(detail::ContextState& context, StepRun& run, Arena& arena, Arena::Growth growth, bool branches,
          bool expects_updates)
      : context_(context) {
    CudaState& state = *context.cuda();
    captured_ = state.capturing();
    detail::CudaBranches& lines = state.step_streams().branches();
    lines.start(expects_updates);
    detail::CudaBranches* const used = branches ? &lines : nullptr;
    context.memory().use_arena(&arena, used, growth);
    context.set_step(&run, used);
  }
  ~Running() {
    CudaState& state = *context_.cuda();
    context_.set_step(nullptr, nullptr);
    context_.memory().use_arena(nullptr, nullptr);
    state.step_streams().branches().stop(captured_);
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  detail::ContextState& context_;
  bool captured_ = false;
};

}  // namespace

class Step::Impl {
 public:
  Impl(const Context& context, int inputs, Function function, const StepOptions& options)
      : context_(context), input_count_(inputs), function_(std::move(function)), options_(options) {
    require<ValueError>(static_cast<bool>(function_), "step: the function is empty");
    require<ValueError>(inputs >= 0, "step: the number of tensors must not be negative, got {}", inputs);
    require<ValueError>(options.graphs >= 1, "step: graphs must be at least 1, got {}", options.graphs);
  }
  ~Impl() { reset(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Tensor run(std::span<const Tensor> arguments) {
    check(arguments);
    return context_.device().type == DeviceType::cpu ? run_here(arguments) : run_on_gpu(arguments);
  }

  std::vector<Tensor> inputs(std::span<const StepInput> like) {
    require<StateError>(!context_.state().step_run(), "step: its tensors were asked for by a step function");
    check_count(like.size());
    if (context_.device().type == DeviceType::cpu) return make_inputs(like);
    const Variant* known = find(like);
    return (known ? known : add(like))->inputs;
  }

  double loss(std::int64_t call) const {
    require<StateError>(options_.mode == Mode::training, "step: an inference step has no losses");
    require<ValueError>(call >= 0 && call < info_.calls, "step: there was no call {}; there were {}", call,
                        info_.calls);
    require<ValueError>(call >= info_.calls - kKeptLosses, "step: the loss of call {} is gone; the last {} are kept",
                        call, kKeptLosses);
    if constexpr (kWithCuda) {
      if (history_) {
        context_.state().check_host_copy("a loss was read");
        return history_->at(call, context_.state().cuda()->backend());
      }
    }
    return losses_[static_cast<std::size_t>(call - (info_.calls - static_cast<std::int64_t>(losses_.size())))];
  }

  StepInfo info() const {
    StepInfo info = info_;
    info.memory_bytes = arena_.bytes();
    for (const std::unique_ptr<Variant>& variant : variants_) {
      for (const Tensor& input : variant->inputs) info.memory_bytes += input.bytes();
      if constexpr (kWithCuda) info.graphs += variant->graph != nullptr;
    }
    return info;
  }

  /// Errors: StateError inside of a step function.
  void check_idle() const {
    require<StateError>(!context_.state().step_run(), "step: a step cannot be reset by a step function");
  }

  void reset() {
    variants_.clear();
    context_.state().memory().dissolve(arena_);
  }

 private:
  /// What is kept for arguments of the same shapes and dtypes.
  struct Variant {
    std::vector<Tensor> inputs;
    bool has_run = false;
    bool optimizes = false;  ///< the run had steps of optimizers
    int failures = 0;        ///< captures that wanted more memory than the runs before
    std::shared_ptr<detail::Graph> graph;
    Tensor result;                            ///< of the graph
    StepRun captured{true};                   ///< what every launch repeats
    std::vector<detail::StoragePtr> written;  ///< by every launch
    std::int64_t last_use = 0;
  };

  void check(std::span<const Tensor> arguments) const {
    require<StateError>(!context_.state().step_run(), "step: a step cannot be called by a step function");
    context_.state().check_usable();
    check_count(arguments.size());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      require<StateError>(arguments[i].defined(), "step: argument {} is an empty handle", i);
      require<DeviceError>(arguments[i].context() == context_,
                           "step: argument {} must be on the step's context ({}), got one on another context ({})", i,
                           context_.device(), arguments[i].device());
    }
  }

  void check_count(std::size_t count) const {
    require<ShapeError>(std::cmp_equal(count, input_count_), "step: the function takes {} tensors, got {}",
                        input_count_, count);
  }

  /// Calls the function and returns its result's value.
  Tensor call(std::span<const Tensor> inputs) {
    Tape tape(context_, {.mode = options_.mode});
    const Var result = function_(tape, inputs);
    require<StateError>(result.defined(), "step: the function returned an empty Var");
    Tensor value = result.value();
    require<DeviceError>(value.context() == context_,
                         "step: the function must return a Var on the step's context ({}), got one on another context "
                         "({})",
                         context_.device(), value.device());
    require<ShapeError>(options_.mode == Mode::inference || value.size() == 1,
                        "step: the function must return a scalar loss, got shape {}", value.shape());
    return value;
  }

  Tensor run_here(std::span<const Tensor> arguments) {
    const detail::ProfileRange range = context_.state().profile(detail::ProfilePhase::step, "step");
    run_.clear();
    Tensor result;
    context_.state().set_step(&run_, nullptr);
    try {
      result = call(arguments);
    } catch (...) {
      context_.state().set_step(nullptr, nullptr);
      throw;
    }
    context_.state().set_step(nullptr, nullptr);
    ++info_.calls;
    if (options_.mode == Mode::training) {
      if (std::cmp_equal(losses_.size(), kKeptLosses)) losses_.pop_front();
      losses_.push_back(result.item());
    }
    run_.check_gradients();
    return result;
  }

  /// Arguments may be inputs themselves, also in another order.
  static void copy_in(std::span<const Tensor> arguments, std::vector<Tensor>& inputs) {
    std::vector<Tensor> sources;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].raw() == inputs[i].raw()) continue;
      const auto overwritten = std::span(inputs).first(i);
      const bool early =
          std::ranges::any_of(overwritten, [&](const Tensor& input) { return input.shares_memory_with(arguments[i]); });
      if (early && sources.empty()) sources.assign(arguments.begin(), arguments.end());
      if (early) sources[i] = arguments[i].clone();
    }
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const Tensor& source = sources.empty() ? arguments[i] : sources[i];
      if (inputs[i].raw() != source.raw()) inputs[i].copy_from(source);
    }
  }

  Tensor run_on_gpu([[maybe_unused]] std::span<const Tensor> arguments) {
    if constexpr (kWithCuda) {
      const detail::DeviceScope scope(context_.state().cuda()->device());
      if (!history_ && options_.mode == Mode::training) history_ = std::make_shared<detail::LossHistory>(kKeptLosses);
      Variant* variant = find(arguments);
      if (!variant) variant = add(likes_of(arguments));
      if (variant->graph) variant->captured.check_repeatable();
      if (variant->has_run && !variant->graph) capture(*variant);
      const detail::ProfileRange range = profile_call(*variant);
      copy_in(arguments, variant->inputs);
      variant->last_use = ++tick_;
      if (!variant->graph) return run_first(*variant);
      variant->graph->launch(context_.state().cuda()->backend().own_stream());
      ++info_.calls;
      ++info_.replays;
      info_.graph_nodes = variant->graph->size();
      for (const detail::StoragePtr& storage : variant->written) {
        storage->version.fetch_add(1, std::memory_order_relaxed);
      }
      return variant->result;
    } else {
      return {};
    }
  }

  /// The range of a call.
  detail::ProfileRange profile_call([[maybe_unused]] const Variant& variant) const {
    if constexpr (kWithCuda) {
      detail::ContextState& state = context_.state();
      if (!state.profiled()) return {};
      const std::string name =
          variant.graph ? detail::format("step (graph of {} nodes)", variant.graph->size()) : "step (first run)";
      return state.profile(detail::ProfilePhase::step, name);
    } else {
      return {};
    }
  }

  static std::vector<StepInput> likes_of(std::span<const Tensor> arguments) {
    std::vector<StepInput> likes;
    for (const Tensor& argument : arguments) likes.push_back({argument.shape(), argument.dtype()});
    return likes;
  }

  /// `like`: tensors, or what they are like.
  template <class Like>
  Variant* find(std::span<const Like> like) const {
    const auto is_like = [](const Tensor& input, const Like& other) {
      if constexpr (std::is_same_v<Like, Tensor>) {
        return input.shape() == other.shape() && input.dtype() == other.dtype();
      } else {
        return input.shape() == other.shape && input.dtype() == other.dtype;
      }
    };
    const auto found = std::ranges::find_if(variants_, [&](const std::unique_ptr<Variant>& variant) {
      return std::ranges::equal(variant->inputs, like, is_like);
    });
    return found == variants_.end() ? nullptr : found->get();
  }

  std::vector<Tensor> make_inputs(std::span<const StepInput> like) const {
    std::vector<Tensor> inputs;
    for (const StepInput& input : like) inputs.push_back(Tensor::empty(context_, input.shape, input.dtype));
    return inputs;
  }

  Variant* add(std::span<const StepInput> like) {
    while (std::cmp_greater_equal(variants_.size(), options_.graphs)) {
      variants_.erase(std::ranges::min_element(
          variants_, {}, [](const std::unique_ptr<Variant>& variant) { return variant->last_use; }));
    }
    auto variant = std::make_unique<Variant>();
    variant->inputs = make_inputs(like);
    variant->last_use = ++tick_;
    variants_.push_back(std::move(variant));
    return variants_.back().get();
  }

  /// The function as it is, on the context's stream and the branches.
  Tensor run_first(Variant& variant) {
    Tensor result;
    if constexpr (kWithCuda) {
      StepRun run(true);
      {
        const Running running(context_.state(), run, arena_, Arena::Growth::free, options_.branches, false);
        result = enqueue(variant);
      }
      ++info_.calls;  // whatever follows: its loss is in the history
      run.check_gradients();
      variant.has_run = true;
      variant.optimizes = run.optimizes();
      // The graph will need the memory of it.
      variant.result = result;
      result = result.clone();
    }
    return result;
  }

  void capture(Variant& variant) {
    if constexpr (kWithCuda) {
      const detail::ProfileRange range = context_.state().profile(detail::ProfilePhase::step, "step (capture)");
      constexpr int kMostFailures = 3;
      StepRun& run = variant.captured;
      const auto undo = [&] {  // nothing has run
        run.restore_gradients();
        run.clear();
        variant.graph.reset();
        variant.result = Tensor();
      };
      run.clear();
      variant.result = Tensor();
      try {
        variant.graph = detail::Graph::capture(*context_.state().cuda(), [&] {
          // Another block may be in use now than was then: it is waited for, since none can be added.
          const Running running(context_.state(), run, arena_, Arena::Growth::last_resort, options_.branches,
                                variant.optimizes);
          variant.result = enqueue(variant);
        });
        run.check_gradients();
      } catch (const detail::ArenaTooSmall&) {
        undo();
        // Other shapes have come and gone since; another run as it is settles that, unless the function never does.
        if (++variant.failures >= kMostFailures) throw;
        return;
      } catch (...) {
        undo();
        throw;
      }
      ++info_.captures;
      variant.written = run.take_written();
    }
  }

  /// The function's work and what belongs to it.
  Tensor enqueue(Variant& variant) {
    Tensor result = call(variant.inputs);
    if constexpr (kWithCuda) {
      detail::ContextState& context = context_.state();
      if (options_.mode == Mode::training) {
        const detail::Beside beside(context_, {&result});
        history_->append(context.cuda()->backend().stream().get(), result.raw(), result.dtype());
      }
      if (detail::Branches* branches = context.branches()) branches->join_all();
    }
    return result;
  }

  Context context_;
  int input_count_;
  Function function_;
  StepOptions options_;
  StepInfo info_;
  Arena arena_;
  std::vector<std::unique_ptr<Variant>> variants_;
  std::int64_t tick_ = 0;
  StepRun run_{false};                            // on a CPU
  std::deque<double> losses_;                     // on a CPU
  std::shared_ptr<detail::LossHistory> history_;  // on a GPU
};

Step::Step(const Context& context, int inputs, Function function, const StepOptions& options)
    : impl_(std::make_unique<Impl>(context, inputs, std::move(function), options)) {}
Step::Step(Step&&) noexcept = default;
Step& Step::operator=(Step&&) noexcept = default;
Step::~Step() = default;

Step::Impl& Step::impl() const {
  require<StateError>(impl_ != nullptr, "step: it was moved from");
  return *impl_;
}

Tensor Step::run(std::span<const Tensor> arguments) { return impl().run(arguments); }
std::vector<Tensor> Step::inputs(std::span<const StepInput> like) { return impl().inputs(like); }
double Step::loss(std::int64_t call) const { return impl().loss(call); }
StepInfo Step::info() const { return impl().info(); }
void Step::reset() {
  impl().check_idle();
  impl().reset();
}

}  // namespace fusegrad
