#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include <cublasLt.h>

#include <fusegrad/autograd/check.h>
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

// In the order of Epilogue.
constexpr cublasLtEpilogue_t kEpilogueValues[kEpilogues] = {
    CUBLASLT_EPILOGUE_DEFAULT,       CUBLASLT_EPILOGUE_BIAS,        CUBLASLT_EPILOGUE_RELU,
    CUBLASLT_EPILOGUE_RELU_BIAS,     CUBLASLT_EPILOGUE_RELU_AUX,    CUBLASLT_EPILOGUE_RELU_AUX_BIAS,
    CUBLASLT_EPILOGUE_GELU,          CUBLASLT_EPILOGUE_GELU_BIAS,   CUBLASLT_EPILOGUE_GELU_AUX,
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DRELU,       CUBLASLT_EPILOGUE_DRELU_BGRAD,
    CUBLASLT_EPILOGUE_DGELU,         CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADB,
};

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

struct Blaslt::Handle {
  Handle() { FUSEGRAD_BLASLT(cublasLtCreate(&value)); }
  ~Handle() { cublasLtDestroy(value); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cublasLtHandle_t value = nullptr;
};

struct Blaslt::Problem {
  Problem(const LtProduct& product, MathMode math);

  Description description;
  Layout a;
  Layout b;
  Layout c;
  Layout d;
};

Blaslt::Problem::Problem(const LtProduct& product, MathMode math) {
  const cudaDataType_t scale = product.a.dtype == Dtype::f64 ? CUDA_R_64F : CUDA_R_32F;
  cublasLtMatmulDesc_t made = nullptr;
  FUSEGRAD_BLASLT(cublasLtMatmulDescCreate(&made, compute_type(product.a.dtype, math), scale));
  description.reset(made);
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, operation(product.transpose_b));
  set(description, CUBLASLT_MATMUL_DESC_TRANSB, operation(product.transpose_a));
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, kEpilogueValues[static_cast<std::size_t>(product.epilogue)]);
  if (product.saved) set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.saved_ld);
  // The heuristic judges the alignment of these two by their addresses.
  if (const void* bias = bias_pointer(product)) set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (product.saved) set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.saved);
  a = layout_of(product.b);
  b = layout_of(product.a);
  c = layout_of(product.c.data ? product.c : product.d);
  d = layout_of(product.d);
}

Blaslt::Blaslt(CudaBackend& backend, const ContextSettings& settings)
    : backend_(backend), settings_(settings), multiprocessors_(multiprocessor_count(backend.device().index)) {
  const std::size_t version = cublasLtGetVersion();
  require<DeviceError>(version >= kOldestVersion && version / 10000 == CUBLAS_VER_MAJOR,
                       "context: cuBLASLt {}.{} was found, fusegrad was built with {}.{} and needs {}.{} or newer",
                       version / 10000, version / 100 % 100, CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR, kOldestVersion / 10000,
                       kOldestVersion / 100 % 100);
  handle_ = std::make_unique<Handle>();
  workspace(0);
}

Blaslt::~Blaslt() {
  for (void* workspace : workspaces_) {
    if (workspace) backend_.release(workspace);
  }
}

void* Blaslt::workspace(int line) {
  void*& workspace = workspaces_[static_cast<std::size_t>(line)];
  if (!workspace) workspace = backend_.allocate(kWorkspaceBytes);
  require<OutOfMemoryError>(workspace != nullptr, "out of memory on {}: {} bytes were asked for, as the workspace",
                            backend_.device().to_string(), kWorkspaceBytes);
  return workspace;
}

std::int64_t Blaslt::held_bytes() const {
  return workspace_bytes() * std::ranges::count_if(workspaces_, [](const void* workspace) { return workspace; });
}

std::int64_t Blaslt::version() { return static_cast<std::int64_t>(cublasLtGetVersion()); }

std::int64_t Blaslt::workspace_bytes() { return static_cast<std::int64_t>(kWorkspaceBytes); }

bool Blaslt::known_bad(const LtProduct& product) {
  // cuBLASLt 13.1 reports success and leaves the bias gradient unwritten or wrong.
  return product.epilogue == Epilogue::bgradb && product.a.dtype == Dtype::f16 && product.d.cols == 1;
}

bool Blaslt::accepts(const LtProduct& product) const {
  if (absent_.test(static_cast<std::size_t>(product.epilogue))) return false;
  const auto fits = [&](std::int64_t rows, std::int64_t ld) {
    std::int64_t elements = 0;
    return !__builtin_mul_overflow(rows, ld, &elements) && elements < element_limit_;
  };
  return fits(product.a.rows, product.a.ld) && fits(product.b.rows, product.b.ld) &&
         fits(product.d.rows, product.d.ld) && fits(product.d.rows, product.saved_ld) &&
         (!product.c.data || fits(product.c.rows, product.c.ld));
}

std::shared_ptr<const Blaslt::Problem> Blaslt::problem_of(const LtProduct& product) const {
  return std::make_shared<const Problem>(product, settings_.math);
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
    like.bias = like.bias_gradient = like.saved = workspaces_[0];  // only asked about, never run
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

std::int32_t Blaslt::multiprocessors(const LtProduct& product, const Algorithm& algorithm) const {
  // How many there are must not change the sums.
  if (product.spare == 0 || decides_split_at_run_time(std::bit_cast<cublasLtMatmulAlgo_t>(algorithm))) return 0;
  // An even number, because kernels pair them.
  return multiprocessors_ - 2 * static_cast<std::int32_t>(std::lround(multiprocessors_ * product.spare / 2));
}

bool Blaslt::launch(const LtProduct& product, const Algorithm& algorithm, CUstream_st* stream) {
  return launch(Problem(product, settings_.math), product, algorithm, stream);
}

bool Blaslt::launch(const Problem& problem, const LtProduct& product, const Algorithm& algorithm, CUstream_st* stream,
                    int line) {
  if (const void* bias = bias_pointer(product)) set(problem.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (product.saved) set(problem.description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.saved);
  set(problem.description, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, multiprocessors(product, algorithm));
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
                     product.d.data, problem.d.get(), &packed, workspace(line), kWorkspaceBytes, stream);
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

std::int64_t workspace_bytes(const Blaslt& blaslt) { return blaslt.held_bytes(); }

std::shared_ptr<Blaslt> make_blaslt(CudaBackend& backend, const ContextSettings& settings) {
  return std::make_shared<Blaslt>(backend, settings);
}

}  // namespace fusegrad::detail
