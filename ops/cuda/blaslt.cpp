#include <algorithm>
#include <bit>
#include <numeric>
#include <string>
#include <vector>

#include <cublasLt.h>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/device.h>
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/ops/cuda/blaslt.h>

namespace fusegrad::detail {
namespace {

using kernels::Transpose;

// Hopper's heuristics want 32 MiB; with less they leave out algorithms.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
constexpr int kMaxCandidates = 8;  // the library offers no more
constexpr std::size_t kOldestVersion = 130000;

void check(cublasStatus_t status, std::string_view call, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  throw CudaError(detail::format("cuda: {} failed with {} ({}) at {}:{}", call, cublasLtGetStatusName(status),
                                 cublasLtGetStatusString(status), file, line));
}

#define FUSEGRAD_BLASLT(call) check((call), #call, __FILE__, __LINE__)

/// Destroys one kind of descriptor.
template <auto destroy>
struct Destroy {
  template <class T>
  void operator()(T* descriptor) const {
    destroy(descriptor);
  }
};
using Description = std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>;

struct EpilogueEntry {
  cublasLtEpilogue_t value;
  std::string_view name;
};

constexpr EpilogueEntry kTable[kEpilogues] = {
    {CUBLASLT_EPILOGUE_DEFAULT, "DEFAULT"},   {CUBLASLT_EPILOGUE_BIAS, "BIAS"},
    {CUBLASLT_EPILOGUE_RELU, "RELU"},         {CUBLASLT_EPILOGUE_RELU_BIAS, "RELU_BIAS"},
    {CUBLASLT_EPILOGUE_RELU_AUX, "RELU_AUX"}, {CUBLASLT_EPILOGUE_RELU_AUX_BIAS, "RELU_AUX_BIAS"},
    {CUBLASLT_EPILOGUE_GELU, "GELU"},         {CUBLASLT_EPILOGUE_GELU_BIAS, "GELU_BIAS"},
    {CUBLASLT_EPILOGUE_GELU_AUX, "GELU_AUX"}, {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, "GELU_AUX_BIAS"},
    {CUBLASLT_EPILOGUE_DRELU, "DRELU"},       {CUBLASLT_EPILOGUE_DRELU_BGRAD, "DRELU_BGRAD"},
    {CUBLASLT_EPILOGUE_DGELU, "DGELU"},       {CUBLASLT_EPILOGUE_DGELU_BGRAD, "DGELU_BGRAD"},
    {CUBLASLT_EPILOGUE_BGRADB, "BGRADB"},
};

constexpr EpilogueEntry entry_of(Epilogue epilogue) { return kTable[static_cast<std::size_t>(epilogue)]; }

cudaDataType_t data_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64: return CUDA_R_64F;
    case Dtype::bf16: return CUDA_R_16BF;
    case Dtype::f16: return CUDA_R_16F;
    default: return CUDA_R_32F;
  }
}

cublasComputeType_t compute_type(Dtype dtype, MathMode math) {
  if (dtype == Dtype::f64) return CUBLAS_COMPUTE_64F;
  if (dtype == Dtype::f32 && math == MathMode::tf32) return CUBLAS_COMPUTE_32F_FAST_TF32;
  return CUBLAS_COMPUTE_32F;
}

std::uint64_t alignment_code(const void* pointer) {
  return static_cast<std::uint64_t>(std::countr_zero(alignment_of(pointer)));
}

/// Products for which the library offers algorithms that are known to be wrong.
bool known_bad(const LtProduct& product) {
  // cuBLASLt 13.1 reports success and leaves the bias gradient unwritten or wrong.
  return product.epilogue == Epilogue::bgradb && product.a.dtype == Dtype::f16 && product.d.cols == 1;
}

template <class T>
void set(const Description& description, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  FUSEGRAD_BLASLT(cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value));
}

template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  FUSEGRAD_BLASLT(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
}

Layout layout_of(const ConstMatrix& matrix) {
  cublasLtMatrixLayout_t layout = nullptr;
  FUSEGRAD_BLASLT(cublasLtMatrixLayoutCreate(&layout, data_type(matrix.dtype), static_cast<std::uint64_t>(matrix.cols),
                                             static_cast<std::uint64_t>(matrix.rows), matrix.ld));
  return Layout(layout);
}

cublasOperation_t operation(Transpose transpose) { return transpose == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N; }

/// How an algorithm that splits the sums may add them up. Partial sums that are kept in the accumulation dtype are
/// rounded once, whatever the algorithm.
std::uint32_t allowed_schemes(const LtProduct& product, bool deterministic) {
  if (size_of(product.d.dtype) != 2 && !deterministic) return CUBLASLT_REDUCTION_SCHEME_MASK;
  return CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

/// Split-K by an amount that the library decides when it runs: not known to repeat its bits.
bool decides_split_at_run_time(const cublasLtMatmulAlgo_t& algorithm) {
  std::int32_t split = 0;
  std::size_t written = 0;
  FUSEGRAD_BLASLT(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split,
                                                       sizeof split, &written));
  return split < 0;
}

/// Statuses of a call that enqueued nothing because the algorithm does not do this product.
bool is_refusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH;
}

}  // namespace

std::string_view name_of(Epilogue epilogue) { return entry_of(epilogue).name; }

std::uint32_t alignment_of(const void* pointer) {
  constexpr std::uintptr_t kEnough = 256;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | kEnough;
  return std::uint32_t{1} << std::countr_zero(address);
}

std::string to_string(const LtProduct& product) {
  std::string text = detail::format("{} {} x {} x {} {}", name_of(product.epilogue), product.d.rows, product.d.cols,
                                    reduction_length(product), name_of(product.a.dtype));
  if (product.d.dtype != product.a.dtype) text += detail::format(" to {}", name_of(product.d.dtype));
  if (product.c.data) text += product.c.data == product.d.data ? ", added to d" : ", c added";
  return text;
}

struct Blaslt::Handle {
  Handle() { FUSEGRAD_BLASLT(cublasLtCreate(&value)); }
  ~Handle() { cublasLtDestroy(value); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cublasLtHandle_t value = nullptr;
};

/// A product as cuBLASLt wants it described.
struct Blaslt::Problem {
  Problem(const LtProduct& product, MathMode math);

  Description description;
  Layout a;
  Layout b;
  Layout c;
  Layout d;
};

struct Blaslt::Plan {
  explicit Plan(const LtProduct& product, MathMode math) : problem(product, math), what(to_string(product)) {}

  Problem problem;
  std::string what;
  /// Best first. The first to be accepted stays; empty: there is none.
  std::vector<Algorithm> candidates = {};
  bool proven = false;
  std::vector<PlanReport::Candidate> measured = {};  ///< the chosen one first
  PlanOrigin origin = PlanOrigin::ranked;
  std::string remark = {};  ///< what was rejected, and why
  const std::string* note = nullptr;
  std::int64_t last_use = 0;
};

Blaslt::Problem::Problem(const LtProduct& product, MathMode math) {
  const cudaDataType_t scale = product.a.dtype == Dtype::f64 ? CUDA_R_64F : CUDA_R_32F;
  cublasLtMatmulDesc_t made = nullptr;
  FUSEGRAD_BLASLT(cublasLtMatmulDescCreate(&made, compute_type(product.a.dtype, math), scale));
  description.reset(made);
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, operation(product.transpose_b));
  set(description, CUBLASLT_MATMUL_DESC_TRANSB, operation(product.transpose_a));
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, entry_of(product.epilogue).value);
  if (product.saved) set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.saved_ld);
  // The heuristic judges the alignment of these two by their addresses.
  if (const void* bias = bias_pointer(product)) set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (product.saved) set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.saved);
  a = layout_of(product.b);
  b = layout_of(product.a);
  c = layout_of(product.c.data ? product.c : product.d);
  d = layout_of(product.d);
}

Blaslt::Blaslt(CudaBackend& backend, const ContextSettings& settings) : backend_(backend), settings_(settings) {
  const std::size_t version = cublasLtGetVersion();
  require<DeviceError>(version >= kOldestVersion && version / 10000 == CUBLAS_VER_MAJOR,
                       "context: cuBLASLt {}.{} was found, fusegrad was built with {}.{} and needs {}.{} or newer",
                       version / 10000, version / 100 % 100, CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, kOldestVersion / 10000,
                       kOldestVersion / 100 % 100);
  handle_ = std::make_unique<Handle>();
  workspace_ = backend_.allocate(kWorkspaceBytes);
  require<OutOfMemoryError>(workspace_ != nullptr, "out of memory on {}: {} bytes were asked for, as the workspace",
                            backend_.device().to_string(), kWorkspaceBytes);
}

Blaslt::~Blaslt() {
  if (workspace_) backend_.release(workspace_);
}

PlanKey key_of(const LtProduct& product) {
  const bool adds = product.c.data != nullptr;
  std::uint64_t flags = 0;
  int used = 0;
  const auto put = [&](std::uint64_t value, int bits) {
    flags |= value << used;
    used += bits;
  };
  put(static_cast<std::uint64_t>(product.epilogue), 4);
  put(static_cast<std::uint64_t>(product.a.dtype), 3);
  put(static_cast<std::uint64_t>(product.d.dtype), 3);
  put(product.transpose_a == Transpose::yes, 1);
  put(product.transpose_b == Transpose::yes, 1);
  put(adds, 1);
  put(product.c.data == product.d.data, 1);
  for (const void* pointer : {product.a.data, product.b.data, product.c.data, static_cast<const void*>(product.d.data),
                              bias_pointer(product), static_cast<const void*>(product.saved)}) {
    put(alignment_code(pointer), 4);
  }
  const auto word = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  return {{word(product.d.rows), word(product.d.cols), word(reduction_length(product)), word(product.a.ld),
           word(product.b.ld), adds ? word(product.c.ld) : 0, word(product.d.ld), word(product.saved_ld), flags}};
}

std::optional<PlanKey> key_of(const PlanRecord& record) {
  PlanKey key;
  if (record.key.size() != key.words.size()) return std::nullopt;
  std::ranges::copy(record.key, key.words.begin());
  return key;
}

std::size_t PlanKeyHash::operator()(const PlanKey& key) const noexcept {
  // The finaliser of splitmix64 over every word.
  std::uint64_t hash = 0;
  for (const std::uint64_t word : key.words) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9u;
    hash ^= hash >> 27;
  }
  return hash;
}

bool Blaslt::within_limits(const LtProduct& product) const {
  const auto fits = [&](std::int64_t rows, std::int64_t ld) {
    std::int64_t elements = 0;
    return !__builtin_mul_overflow(rows, ld, &elements) && elements < element_limit_;
  };
  return fits(product.a.rows, product.a.ld) && fits(product.b.rows, product.b.ld) &&
         fits(product.d.rows, product.d.ld) && fits(product.d.rows, product.saved_ld) &&
         (!product.c.data || fits(product.c.rows, product.c.ld));
}

std::vector<Algorithm> Blaslt::heuristic(const Problem& problem, const LtProduct& product) const {
  cublasLtMatmulPreference_t made = nullptr;
  FUSEGRAD_BLASLT(cublasLtMatmulPreferenceCreate(&made));
  const Preference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(product.b.data));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(product.a.data));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
      alignment_of(product.c.data ? product.c.data : product.d.data));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(product.d.data));
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, allowed_schemes(product, settings_.deterministic));

  cublasLtMatmulHeuristicResult_t results[kMaxCandidates] = {};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_->value, problem.description.get(), problem.a.get(), problem.b.get(), problem.c.get(), problem.d.get(),
      preference.get(), kMaxCandidates, results, &count);
  std::vector<Algorithm> algorithms;
  if (is_refusal(status)) return algorithms;
  check(status, detail::format("cublasLtMatmulAlgoGetHeuristic for {}", to_string(product)), __FILE__, __LINE__);
  for (const cublasLtMatmulHeuristicResult_t& result : std::span(results).first(static_cast<std::size_t>(count))) {
    if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkspaceBytes) continue;
    if (settings_.deterministic && decides_split_at_run_time(result.algo)) continue;
    algorithms.push_back(std::bit_cast<Algorithm>(result.algo));
  }
  return algorithms;
}

std::vector<Algorithm> Blaslt::algorithms(const LtProduct& product, bool with_known_bad) const {
  if (known_bad(product) && !with_known_bad) return {};
  const Problem problem(product, settings_.math);
  std::vector<Algorithm> all = heuristic(problem, product);
  // The heuristic leaves out algorithms that it offers for other epilogues, and sometimes they are the fastest.
  for (const Epilogue other : {Epilogue::none, Epilogue::bias, Epilogue::relu_bias, Epilogue::relu_aux_bias,
                               Epilogue::gelu_aux_bias, Epilogue::drelu, Epilogue::dgelu, Epilogue::bgradb}) {
    if (other == product.epilogue) continue;
    LtProduct like = product;
    like.epilogue = other;
    like.bias = like.bias_gradient = like.saved = workspace_;  // only asked about, never run
    like.saved_ld = is_relu_mask(other) ? mask_row_bytes(product.d.cols) * 8 : (product.d.cols + 7) / 8 * 8;
    if (other == Epilogue::none) like.bias = like.bias_gradient = like.saved = nullptr;
    for (const Algorithm& algorithm : heuristic(Problem(like, settings_.math), like)) {
      if (std::ranges::find(all, algorithm) != all.end()) continue;
      if (offers(problem, product, algorithm)) all.push_back(algorithm);
    }
  }
  return all;
}

bool Blaslt::offers(const Problem& problem, const LtProduct& product, const Algorithm& algorithm) const {
  const auto packed = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle_->value, problem.description.get(), problem.a.get(), problem.b.get(),
                              problem.c.get(), problem.d.get(), &packed, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkspaceBytes) return false;
  std::uint32_t scheme = 0;
  std::size_t written = 0;
  FUSEGRAD_BLASLT(cublasLtMatmulAlgoConfigGetAttribute(&packed, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                       sizeof scheme, &written));
  if ((scheme & ~allowed_schemes(product, settings_.deterministic)) != 0) return false;
  return !settings_.deterministic || !decides_split_at_run_time(packed);
}

bool Blaslt::launch(const LtProduct& product, const Algorithm& algorithm, CUstream_st* stream) const {
  return launch(Problem(product, settings_.math), product, algorithm, stream);
}

bool Blaslt::launch(const Problem& problem, const LtProduct& product, const Algorithm& algorithm,
                    CUstream_st* stream) const {
  if (const void* bias = bias_pointer(product)) set(problem.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (product.saved) set(problem.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.saved);
  static constexpr float kOne = 1;
  static constexpr float kZero = 0;
  static constexpr double kWideOne = 1;
  static constexpr double kWideZero = 0;
  const bool wide = product.a.dtype == Dtype::f64;
  const bool adds = product.c.data != nullptr;
  const void* alpha = wide ? static_cast<const void*>(&kWideOne) : &kOne;
  const void* zero = wide ? static_cast<const void*>(&kWideZero) : &kZero;
  const auto packed = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
  const cublasStatus_t status =
      cublasLtMatmul(handle_->value, problem.description.get(), alpha, product.b.data, problem.a.get(), product.a.data,
                     problem.b.get(), adds ? alpha : zero, adds ? product.c.data : product.d.data, problem.c.get(),
                     product.d.data, problem.d.get(), &packed, workspace_, kWorkspaceBytes, stream);
  if (status == CUBLAS_STATUS_SUCCESS) return true;
  if (is_refusal(status)) return false;
  check(status, detail::format("cublasLtMatmul for {}", to_string(product)), __FILE__, __LINE__);
  return false;
}

std::string Blaslt::describe(const Algorithm& algorithm) {
  const auto packed = std::bit_cast<cublasLtMatmulAlgo_t>(algorithm);
  const auto attribute = [&](cublasLtMatmulAlgoConfigAttributes_t which) {
    std::int32_t value = 0;
    std::size_t written = 0;
    FUSEGRAD_BLASLT(cublasLtMatmulAlgoConfigGetAttribute(&packed, which, &value, sizeof value, &written));
    return value;
  };
  std::string text = detail::format("algorithm {}, tile {}, stages {}", attribute(CUBLASLT_ALGO_CONFIG_ID),
                                    attribute(CUBLASLT_ALGO_CONFIG_TILE_ID), attribute(CUBLASLT_ALGO_CONFIG_STAGES_ID));
  const std::int32_t split = attribute(CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  if (split != 1) text += detail::format(", split {}", split);
  return text;
}

Stopwatch& Blaslt::stopwatch() {
  if (!stopwatch_) stopwatch_ = std::make_unique<Stopwatch>();
  return *stopwatch_;
}

bool Blaslt::may_search() const { return !backend_.stream().capturing(); }

/// Nothing if there is no memory to try anything in.
std::optional<SearchResult> Blaslt::try_candidates(const CudaExecution& execution, const LtProduct& product, Plan& plan,
                                                   Clock clock) {
  const std::unique_ptr<Trial> trial = Trial::make(backend_, product);
  if (!trial) return std::nullopt;
  if (clock == Clock::running) plan.candidates = algorithms(product);
  const CudaExecution aside{stopwatch().stream().get(), execution.state};
  const auto run = [&](const LtProduct& operands, const Algorithm& algorithm, CUstream_st* stream) {
    return launch(plan.problem, operands, algorithm, stream);
  };
  SearchResult result = search(aside, stopwatch(), *trial, plan.candidates, run, clock);
  stopwatch().stream().synchronize();
  Counters& counters = execution.state.counters();
  counters.rejected_candidates += result.rejected;
  counters.plans_measured += clock == Clock::running;
  return result;
}

void Blaslt::search_plan(const CudaExecution& execution, const LtProduct& product, Plan& plan, Clock clock) {
  const std::optional<SearchResult> tried = try_candidates(execution, product, plan, clock);
  if (!tried) return;  // the heuristic's choice stays
  const SearchResult& result = *tried;
  const auto us = [&](int index) { return result.us.empty() ? 0 : result.us[static_cast<std::size_t>(index)]; };
  std::vector<int> order(plan.candidates.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](int a, int b) { return std::pair(a != result.chosen, us(a)) < std::pair(b != result.chosen, us(b)); });
  for (const int index : order) {
    if (us(index) < 0) continue;
    plan.measured.push_back({describe(plan.candidates[static_cast<std::size_t>(index)]), us(index)});
  }
  if (result.chosen < 0) {
    plan.candidates.clear();
    plan.measured.clear();
  } else {
    plan.candidates = {plan.candidates[static_cast<std::size_t>(result.chosen)]};
    plan.origin = clock == Clock::running ? PlanOrigin::measured : PlanOrigin::verified;
  }
  if (result.rejected != 0) {
    if (!plan.remark.empty()) plan.remark += "; ";
    plan.remark += detail::format("{} algorithms rejected: {}", result.rejected, result.rejection);
  }
}

/// Gives `plan` the algorithm that a file has for the product. False if there is none, if it is wrong, or if it cannot
/// be verified now.
bool Blaslt::take_proposal(const CudaExecution& execution, const LtProduct& product, Plan& plan) {
  const auto found = proposals_.find(key_of(product));
  if (found == proposals_.end()) return false;
  Proposal& proposal = found->second;
  std::string_view fault = "cuBLASLt does not offer it";
  if (offers(plan.problem, product, proposal.algorithm)) {
    fault = {};
    if (!proposal.trusted) {
      if (!may_search()) return false;
      plan.candidates = {proposal.algorithm};
      const std::optional<SearchResult> tried = try_candidates(execution, product, plan, Clock::stopped);
      plan.candidates.clear();
      if (!tried) return false;
      fault = tried->rejection;
      proposal.trusted = fault.empty();
    }
  } else {
    ++execution.state.counters().rejected_candidates;
  }
  if (!fault.empty()) {
    plan.remark = detail::format("the algorithm of the plan file rejected: {}", fault);
    execution.state.warn(detail::format("plan file: the algorithm for {} was rejected: {}", plan.what, fault));
    proposals_.erase(found);
    return false;
  }
  // Should it refuse its first run, the heuristic's have their turn, as they would without the file.
  if (!settings_.deterministic) plan.candidates = heuristic(plan.problem, product);
  plan.candidates.insert(plan.candidates.begin(), proposal.algorithm);
  plan.measured = proposal.record.candidates;
  plan.measured.front().name = describe(proposal.algorithm);
  plan.origin = PlanOrigin::file;
  ++execution.state.counters().plans_loaded;
  return true;
}

std::unique_ptr<Blaslt::Plan> Blaslt::make_plan(const CudaExecution& execution, const LtProduct& product) {
  auto plan = std::make_unique<Plan>(product, settings_.math);
  if (known_bad(product) || take_proposal(execution, product, *plan)) return plan;
  plan->candidates = heuristic(plan->problem, product);
  if (plan->candidates.empty() || !may_search()) return plan;
  if (settings_.deterministic) {
    search_plan(execution, product, *plan, Clock::stopped);
  } else if (settings_.plans == PlanPolicy::measure) {
    search_plan(execution, product, *plan, Clock::running);
  }
  return plan;
}

void Blaslt::evict_one() {
  const auto oldest = std::ranges::min_element(
      plans_, [](const auto& a, const auto& b) { return a.second->last_use < b.second->last_use; });
  plans_.erase(oldest);
}

Blaslt::Plan& Blaslt::plan_for(const CudaExecution& execution, const LtProduct& product) {
  Counters& counters = execution.state.counters();
  const PlanKey key = key_of(product);
  const auto found = plans_.find(key);
  if (found != plans_.end()) {
    ++counters.plan_hits;
    found->second->last_use = ++tick_;
    return *found->second;
  }
  std::unique_ptr<Plan> plan = make_plan(execution, product);
  ++counters.plan_misses;
  plan->last_use = ++tick_;
  while (plans_.size() >= plan_limit_) {
    evict_one();
    ++counters.plan_evictions;
  }
  return *plans_.emplace(key, std::move(plan)).first->second;
}

const std::string* Blaslt::run(const CudaExecution& execution, const LtProduct& product) {
  if (absent_.test(static_cast<std::size_t>(product.epilogue)) || !within_limits(product)) return nullptr;
  Plan& plan = plan_for(execution, product);
  while (!plan.candidates.empty()) {
    if (launch(plan.problem, product, plan.candidates.front(), execution.stream)) {
      if (!plan.proven) {
        plan.candidates.resize(1);
        plan.candidates.shrink_to_fit();
        plan.proven = true;
        plan.note = &*texts_.insert(note_of(plan)).first;
      }
      ++execution.state.counters().plan_uses;
      return plan.note;
    }
    require<CudaError>(!plan.proven, "cuda: cublasLtMatmul refused {}, which it has run before", plan.what);
    // An algorithm that the heuristic offered may still refuse its first run; then the next one has its turn.
    plan.candidates.erase(plan.candidates.begin());
    plan.measured.clear();
    plan.origin = PlanOrigin::ranked;
  }
  return nullptr;
}

std::string Blaslt::note_of(const Plan& plan) {
  std::string text = plan.what;
  if (!plan.remark.empty()) text += detail::format(" ({})", plan.remark);
  text += ": " + describe(plan.candidates.front());
  if (plan.origin == PlanOrigin::file) text += ", from a plan file";
  if (plan.measured.empty() || plan.measured.front().us == 0) return text;
  text += detail::format(", {:.1f} us, the best of {}", plan.measured.front().us, plan.measured.size());
  if (plan.measured.size() > 1) text += detail::format(" (next {:.1f} us)", plan.measured[1].us);
  return text;
}

std::vector<PlanReport> Blaslt::reports() const {
  std::vector<PlanReport> all;
  for (const auto& [key, plan] : plans_) {
    PlanReport report{.what = plan->what, .candidates = plan->measured, .origin = plan->origin, .remark = plan->remark};
    if (report.candidates.empty() && !plan->candidates.empty()) {
      report.candidates.push_back({describe(plan->candidates.front())});
    }
    all.push_back(std::move(report));
  }
  std::ranges::sort(all, {}, &PlanReport::what);
  return all;
}

const PlanSource& Blaslt::source() {
  if (!source_) {
    source_ = {.card = cuda_card(backend_.device().index),
               .driver = cuda_driver_version(),
               .library = static_cast<std::int64_t>(cublasLtGetVersion()),
               .workspace = static_cast<std::int64_t>(kWorkspaceBytes),
               .math = settings_.math == MathMode::tf32 ? "tf32" : "fp32",
               .deterministic = settings_.deterministic};
  }
  return *source_;
}

std::vector<PlanRecord> Blaslt::records() const {
  std::vector<PlanRecord> all;
  for (const auto& [key, plan] : plans_) {
    if (plan->origin == PlanOrigin::ranked || plan->candidates.empty()) continue;
    const Algorithm& algorithm = plan->candidates.front();
    all.push_back({.subject = PlanSubject::product,
                   .key = {key.words.begin(), key.words.end()},
                   .algorithm = {algorithm.words.begin(), algorithm.words.end()},
                   .what = plan->what,
                   .candidates = plan->measured});
  }
  for (const auto& [key, proposal] : proposals_) {
    if (!plans_.contains(key)) all.push_back(proposal.record);
  }
  return all;
}

bool Blaslt::has_measured() const {
  return std::ranges::any_of(plans_, [](const auto& plan) { return plan.second->origin == PlanOrigin::measured; });
}

int Blaslt::propose(const std::vector<PlanRecord>& records, bool verify) {
  int taken = 0;
  for (const PlanRecord& record : records) {
    Proposal proposal{.record = record, .trusted = !verify && !settings_.deterministic};
    const std::optional<PlanKey> key = key_of(record);
    if (record.subject != PlanSubject::product || !key || record.candidates.empty() ||
        record.algorithm.size() != proposal.algorithm.words.size()) {
      continue;
    }
    std::ranges::copy(record.algorithm, proposal.algorithm.words.begin());
    const auto made = plans_.find(*key);
    if (made != plans_.end() && made->second->origin == PlanOrigin::ranked) plans_.erase(made);
    proposals_.insert_or_assign(*key, std::move(proposal));
    ++taken;
  }
  return taken;
}

std::shared_ptr<Blaslt> make_blaslt(CudaBackend& backend, const ContextSettings& settings) {
  return std::make_shared<Blaslt>(backend, settings);
}

}  // namespace fusegrad::detail
