#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <sched.h>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/cpu/host_memory.h>
#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/device.h>
#include <fusegrad/autograd/cuda/nvtx.h>
#include <fusegrad/autograd/execution.h>

namespace fusegrad {
namespace {

constexpr int kMaxThreads = 1024;

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, std::min(CPU_COUNT(&set), kMaxThreads));
}

/// Value of an environment variable, or null if it is unset or empty.
const char* environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing here changes the environment
  return value && *value ? value : nullptr;
}

int resolve_threads(const std::optional<int>& option) {
  if (option) {
    detail::require<ValueError>(*option >= 1 && *option <= kMaxThreads, "context: threads must be 1 to {}, got {}",
                                kMaxThreads, *option);
    return *option;
  }
  const char* text = environment("FUSEGRAD_THREADS");
  if (!text) return available_cores();
  int threads = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, threads);
  detail::require<ValueError>(error == std::errc{} && stop == end && threads >= 1 && threads <= kMaxThreads,
                              "context: FUSEGRAD_THREADS must be 1 to {}, got \"{}\"", kMaxThreads, text);
  return threads;
}

Fusion resolve_fusion(const std::optional<Fusion>& option) {
  if (option) return *option;
  const char* text = environment("FUSEGRAD_FUSION");
  if (!text) return Fusion::on;
  const std::string_view value = text;
  detail::require<ValueError>(value == "on" || value == "off",
                              "context: FUSEGRAD_FUSION must be \"on\" or \"off\", got \"{}\"", value);
  return value == "on" ? Fusion::on : Fusion::off;
}

ProductLibrary resolve_products(const std::optional<ProductLibrary>& option) {
  constexpr std::string_view kMissing = "but this fusegrad was built without oneDNN";
  if (option) {
    detail::require<ValueError>(kWithOnednn || *option == ProductLibrary::eigen, "context: products is onednn, {}",
                                kMissing);
    return *option;
  }
  const char* text = environment("FUSEGRAD_ONEDNN");
  if (!text) return kWithOnednn ? ProductLibrary::onednn : ProductLibrary::eigen;
  const std::string_view value = text;
  detail::require<ValueError>(value == "on" || value == "off",
                              "context: FUSEGRAD_ONEDNN must be \"on\" or \"off\", got \"{}\"", value);
  detail::require<ValueError>(kWithOnednn || value == "off", "context: FUSEGRAD_ONEDNN is \"on\", {}", kMissing);
  return value == "on" ? ProductLibrary::onednn : ProductLibrary::eigen;
}

Strategy resolve_strategy(const std::optional<Strategy>& option) {
  if (option) return *option;
  const char* text = environment("FUSEGRAD_STRATEGY");
  if (!text) return Strategy::automatic;
  const std::string_view value = text;
  for (const Strategy strategy : {Strategy::epilogue, Strategy::split, Strategy::pass}) {
    if (value == name_of(strategy)) return strategy;
  }
  throw ValueError(
      detail::format("context: FUSEGRAD_STRATEGY must be \"epilogue\", \"split\" or \"pass\", got \"{}\"", value));
}

std::optional<PlanPolicy> resolve_plans(const std::optional<PlanPolicy>& option) {
  if (option) return option;
  const char* text = environment("FUSEGRAD_PLANS");
  if (!text) return std::nullopt;
  const std::string_view value = text;
  detail::require<ValueError>(value == "heuristic" || value == "measure",
                              "context: FUSEGRAD_PLANS must be \"heuristic\" or \"measure\", got \"{}\"", value);
  return value == "measure" ? PlanPolicy::measure : PlanPolicy::heuristic;
}

std::string resolve_plan_cache(const std::optional<std::string>& option) {
  if (option) return *option;
  const char* path = environment("FUSEGRAD_PLAN_CACHE");
  return path ? path : "";
}

bool is_annotated() {
  if constexpr (kWithCuda) {
    return detail::has_nvtx_tool();
  } else {
    return false;
  }
}

detail::ContextSettings resolve(const ContextOptions& options) {
  return {.threads = resolve_threads(options.threads),
          .fusion = resolve_fusion(options.fusion),
          .products = resolve_products(options.products),
          .math = options.math,
          .strategy = resolve_strategy(options.strategy),
          .plans = resolve_plans(options.plans),
          .deterministic = options.deterministic,
          .plan_cache = resolve_plan_cache(options.plan_cache)};
}

}  // namespace

namespace detail {

constinit thread_local const ContextState* ContextState::stepping = nullptr;

ContextState::ContextState(std::unique_ptr<Backend> backend, const ContextSettings& settings)
    : memory_(std::move(backend)), pool_(settings.threads), settings_(settings), annotated_(is_annotated()) {}

ContextState::~ContextState() {
  for (const Constant& constant : constants_) memory_.give_back(constant.storage);
}

Tensor ContextState::constant(Dtype dtype, double value) {
  constexpr std::size_t kMost = 64;  // loss scales, one a dtype
  const Context self(shared_from_this());
  auto found = std::ranges::find_if(
      constants_, [&](const Constant& constant) { return constant.dtype == dtype && constant.value == value; });
  if (found == constants_.end()) {
    if (constants_.size() == kMost) return Tensor::full(self, {}, dtype, value);
    constants_.reserve(kMost);
    const OutsideStep outside(*this);
    const Tensor made = Tensor::full(self, {}, dtype, value);
    Storage* storage = memory_.take(size_of(dtype));
    backend().copy_within(storage->data, made.raw(), size_of(dtype));
    found = constants_.insert(constants_.end(), {dtype, value, storage});
  }
  return Tensor::borrow_raw(self, {}, dtype, found->storage->data);
}

void ContextState::set_step(StepRun* run, Branches* branches) {
  step_run_ = run;
  branches_ = branches;
  backend().set_branches(branches);
  stepping = run && cuda_ ? this : nullptr;
}

OutsideStep::OutsideStep(ContextState& context)
    : context_(context), run_(context.step_run()), branches_(context.branches()) {
  if (!run_) return;
  context_.set_step(nullptr, nullptr);
  context_.memory().suspend_arena();
}

OutsideStep::~OutsideStep() {
  if (!run_) return;
  context_.memory().resume_arena();
  context_.set_step(run_, branches_);
}

void ContextState::refuse_use() const {
  throw StateError(
      "step: another context was used inside the step function; a graph repeats the work of its own context only");
}

void ContextState::refuse_host_copy(std::string_view what) const {
  throw StateError(detail::format(
      "step: {} inside the step function; a graph repeats the work of the GPU only: do it before or after the call",
      what));
}

}  // namespace detail

std::string Device::to_string() const { return type == DeviceType::cpu ? "cpu" : detail::format("cuda:{}", index); }

Context Context::cpu(const ContextOptions& options) {
  return Context(std::make_shared<detail::ContextState>(detail::make_cpu_backend(), resolve(options)));
}

Context Context::cuda(const ContextOptions& options) {
  if constexpr (kWithCuda) {
    return Context(detail::make_cuda_context(resolve(options), options.device, options.stream));
  } else {
    throw DeviceError("context: this fusegrad was built without CUDA");
  }
}

Context Context::best(const ContextOptions& options) {
  if constexpr (kWithCuda) {
    const int count = detail::cuda_device_count();
    const bool unusable = options.device < count && options.device >= 0 && !detail::has_kernels_for(options.device);
    if (count > 0 && !unusable) return cuda(options);
  }
  return cpu(options);
}

Device Context::device() const { return state_->backend().device(); }
int Context::threads() const { return state_->pool().threads(); }
Fusion Context::fusion() const { return state_->fusion(); }
ProductLibrary Context::products() const { return state_->settings().products; }
MathMode Context::math() const { return state_->settings().math; }
Strategy Context::strategy() const { return state_->settings().strategy; }
PlanPolicy Context::plan_policy() const { return state_->plan_policy(); }
bool Context::deterministic() const { return state_->settings().deterministic; }
const Counters& Context::counters() const { return state_->counters(); }
const std::vector<std::string>& Context::warnings() const { return state_->warnings(); }

MemoryUse Context::memory() const {
  MemoryUse use = state_->memory().use();
  if constexpr (kWithCuda) {
    if (detail::CudaState* cuda = state_->cuda()) use.workspace = detail::workspace_bytes(cuda->blaslt());
  }
  return use;
}

void Context::synchronize() const {
  state_->check_host_copy("the host waited for the GPU");
  state_->backend().synchronize();
}

void Context::release_cached_memory() const {
  state_->check_host_copy("cached memory was released");
  state_->memory().trim();
}

}  // namespace fusegrad
