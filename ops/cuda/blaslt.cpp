#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include <cublasLt.h>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/ops/cuda/blaslt.h>

namespace fusegrad::detail {
namespace {

using kernels::Transpose;

// Hopper's heuristics want 32 MiB; with less they leave out algorithms.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
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

/// Largest power of two up to 256 that divides the address; 256 for null.
std::uint32_t alignment_of(const void* pointer) {
  constexpr std::uintptr_t kEnough = 256;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer) | kEnough;
  return std::uint32_t{1} << std::countr_zero(address);
}

std::uint64_t alignment_code(const void* pointer) {
  return static_cast<std::uint64_t>(std::countr_zero(alignment_of(pointer)));
}

const void* bias_pointer(const LtProduct& product) {
  return product.bias_gradient ? product.bias_gradient : product.bias;
}

std::int64_t reduction_length(const LtProduct& product) {
  return product.transpose_a == Transpose::yes ? product.a.rows : product.a.cols;
}

std::string describe(const LtProduct& product) {
  return detail::format("{} with m={} n={} k={}, {} to {}", name_of(product.epilogue), product.d.rows, product.d.cols,
                        reduction_length(product), name_of(product.a.dtype), name_of(product.d.dtype));
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

struct Blaslt::Handle {
  Handle() { FUSEGRAD_BLASLT(cublasLtCreate(&value)); }
  ~Handle() { cublasLtDestroy(value); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cublasLtHandle_t value = nullptr;
};

struct Blaslt::Plan {
  Description description;
  Layout a;
  Layout b;
  Layout c;
  Layout d;
  /// Best first. The first to be accepted stays, alone; empty: there is none.
  std::vector<cublasLtMatmulAlgo_t> candidates;
  bool proven = false;
};

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

Blaslt::Key Blaslt::key_of(const LtProduct& product) {
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

std::size_t Blaslt::KeyHash::operator()(const Key& key) const noexcept {
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

std::unique_ptr<Blaslt::Plan> Blaslt::make_plan(const LtProduct& product) const {
  auto plan = std::make_unique<Plan>();
  if (known_bad(product)) return plan;
  const cudaDataType_t scale = product.a.dtype == Dtype::f64 ? CUDA_R_64F : CUDA_R_32F;
  cublasLtMatmulDesc_t description = nullptr;
  FUSEGRAD_BLASLT(cublasLtMatmulDescCreate(&description, compute_type(product.a.dtype, settings_.math), scale));
  plan->description.reset(description);
  set(plan->description, CUBLASLT_MATMUL_DESC_TRANSA, operation(product.transpose_b));
  set(plan->description, CUBLASLT_MATMUL_DESC_TRANSB, operation(product.transpose_a));
  set(plan->description, CUBLASLT_MATMUL_DESC_EPILOGUE, entry_of(product.epilogue).value);
  if (product.saved) set(plan->description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.saved_ld);
  // The heuristic judges the alignment of these two by their addresses.
  if (const void* bias = bias_pointer(product)) set(plan->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (product.saved) set(plan->description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.saved);
  plan->a = layout_of(product.b);
  plan->b = layout_of(product.a);
  plan->c = layout_of(product.c.data ? product.c : product.d);
  plan->d = layout_of(product.d);

  cublasLtMatmulPreference_t made = nullptr;
  FUSEGRAD_BLASLT(cublasLtMatmulPreferenceCreate(&made));
  const Preference preference(made);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(product.b.data));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(product.a.data));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
      alignment_of(product.c.data ? product.c.data : product.d.data));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(product.d.data));
  // Partial sums of a split are kept in the accumulation dtype: one rounding, whatever the algorithm.
  if (size_of(product.d.dtype) == 2 || settings_.deterministic) {
    const std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
  }

  cublasLtMatmulHeuristicResult_t results[kMaxCandidates] = {};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_->value, plan->description.get(), plan->a.get(), plan->b.get(),
                                     plan->c.get(), plan->d.get(), preference.get(), kMaxCandidates, results, &count);
  if (is_refusal(status)) return plan;
  check(status, detail::format("cublasLtMatmulAlgoGetHeuristic for {}", describe(product)), __FILE__, __LINE__);
  for (const cublasLtMatmulHeuristicResult_t& result : std::span(results).first(static_cast<std::size_t>(count))) {
    if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkspaceBytes) continue;
    if (settings_.deterministic && decides_split_at_run_time(result.algo)) continue;
    plan->candidates.push_back(result.algo);
  }
  return plan;
}

Blaslt::Plan& Blaslt::plan_for(const LtProduct& product, Counters& counters) {
  const Key key = key_of(product);
  if (const auto found = plans_.find(key); found != plans_.end()) return *found->second;
  std::unique_ptr<Plan> plan = make_plan(product);
  ++counters.plans;
  return *plans_.emplace(key, std::move(plan)).first->second;
}

bool Blaslt::run(const LtProduct& product, Counters& counters) {
  if (absent_.test(static_cast<std::size_t>(product.epilogue)) || !within_limits(product)) return false;
  Plan& plan = plan_for(product, counters);
  if (plan.candidates.empty()) return false;
  if (const void* bias = bias_pointer(product)) set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (product.saved) set(plan.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.saved);

  static constexpr float kOne = 1;
  static constexpr float kZero = 0;
  static constexpr double kWideOne = 1;
  static constexpr double kWideZero = 0;
  const bool wide = product.a.dtype == Dtype::f64;
  const bool adds = product.c.data != nullptr;
  const void* alpha = wide ? static_cast<const void*>(&kWideOne) : &kOne;
  const void* zero = wide ? static_cast<const void*>(&kWideZero) : &kZero;
  while (!plan.candidates.empty()) {
    const cublasStatus_t status = cublasLtMatmul(
        handle_->value, plan.description.get(), alpha, product.b.data, plan.a.get(), product.a.data, plan.b.get(),
        adds ? alpha : zero, adds ? product.c.data : product.d.data, plan.c.get(), product.d.data, plan.d.get(),
        &plan.candidates.front(), workspace_, kWorkspaceBytes, backend_.stream().get());
    if (status == CUBLAS_STATUS_SUCCESS) {
      if (!plan.proven) {
        plan.candidates.resize(1);
        plan.candidates.shrink_to_fit();
        plan.proven = true;
      }
      ++counters.plan_uses;
      return true;
    }
    // An algorithm that the heuristic offered may still refuse its first run; then the next one has its turn.
    if (plan.proven || !is_refusal(status)) {
      check(status, detail::format("cublasLtMatmul for {}", describe(product)), __FILE__, __LINE__);
    }
    plan.candidates.erase(plan.candidates.begin());
  }
  return false;
}

std::shared_ptr<Blaslt> make_blaslt(CudaBackend& backend, const ContextSettings& settings) {
  return std::make_shared<Blaslt>(backend, settings);
}

}  // namespace fusegrad::detail
