// The part of cuBLASLt that fusegrad calls, computed on the host by the rules that its header states and that were
// measured on a GPU: v = AB + beta C + bias, then the activation; beta C comes before an activation gradient; the mask
// bit is v >= 0; bias gradients are overwritten, in D's dtype. A request that the real library would refuse, or read
// out of bounds for, ends the program with what is wrong.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <cublasLt.h>

#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/autograd/narrow.h>

using fusegrad::Dtype;

struct FakeDescription {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t transpose_a = CUBLAS_OP_N;
  std::int32_t transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  void* aux = nullptr;
  std::int64_t aux_ld = 0;
  std::int32_t multiprocessors = 0;  // numbers do not depend on it
};

struct FakeLayout {
  cudaDataType_t type;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t ld;
};

struct FakePreference {
  std::uint64_t workspace = 0;
  std::uint32_t alignment[4] = {256, 256, 256, 256};
  std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
};

/// What an algorithm was chosen for; it may be used for nothing less aligned.
struct FakeAlgorithm {
  std::uint32_t alignment[6];  // A, B, C, D, bias, aux
  std::int64_t number;
  std::int64_t extents[2];
};
static_assert(sizeof(FakeAlgorithm) <= sizeof(cublasLtMatmulAlgo_t));

// Algorithms, in the order in which the heuristic offers them. The first refuses to run. The last is not offered: its
// results are wrong.
constexpr std::int64_t kRefusing = 0;
constexpr std::int64_t kOffered = 3;
constexpr std::int64_t kWrong = 3;

namespace {

[[noreturn]] void stop(const char* what) {
  std::fprintf(stderr, "fake cuBLASLt: %s\n", what);
  std::abort();
}
void demand(bool condition, const char* what) {
  if (!condition) stop(what);
}

Dtype dtype_of(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_64F: return Dtype::f64;
    case CUDA_R_32F: return Dtype::f32;
    case CUDA_R_16BF: return Dtype::bf16;
    case CUDA_R_16F: return Dtype::f16;
    default: stop("a type that fusegrad has not");
  }
}

FakeDescription& fake(cublasLtMatmulDesc_t d) { return *reinterpret_cast<FakeDescription*>(d); }
FakeLayout& fake(cublasLtMatrixLayout_t l) { return *reinterpret_cast<FakeLayout*>(l); }
FakePreference& fake(cublasLtMatmulPreference_t p) { return *reinterpret_cast<FakePreference*>(p); }

std::uint32_t alignment_of(const void* pointer) {
  std::uint32_t alignment = 1;
  while (alignment < 256 && reinterpret_cast<std::uintptr_t>(pointer) % (2 * alignment) == 0) alignment *= 2;
  return alignment;
}

bool has(std::uint32_t epilogue, std::uint32_t bit) { return (epilogue & bit) == bit; }
bool is_bgradb(std::uint32_t e) { return e == CUBLASLT_EPILOGUE_BGRADB; }
bool is_gradient(std::uint32_t e) { return has(e, 8) || has(e, 64); }
bool uses_bias(std::uint32_t e) { return has(e, CUBLASLT_EPILOGUE_BIAS) || has(e, 16) || is_bgradb(e); }

double element(const void* data, Dtype dtype, std::int64_t index) {
  return fusegrad::detail::visit_floating(
      dtype, [&]<class T>() { return static_cast<double>(static_cast<const T*>(data)[index]); });
}
void store(void* data, Dtype dtype, std::int64_t index, double value) {
  fusegrad::detail::visit_floating(
      dtype, [&]<class T>() { static_cast<T*>(data)[index] = fusegrad::detail::narrow<T>(value); });
}

/// Column-major op(matrix) as doubles, operands rounded as the compute type has it.
std::vector<double> operand(const void* data, const FakeLayout& layout, std::int32_t transpose, bool tf32) {
  const bool t = transpose == CUBLAS_OP_T;
  const std::int64_t rows = t ? layout.cols : layout.rows;
  const std::int64_t cols = t ? layout.rows : layout.cols;
  std::vector<double> result(static_cast<std::size_t>(rows * cols));
  for (std::int64_t j = 0; j < layout.cols; ++j)
    for (std::int64_t i = 0; i < layout.rows; ++i) {
      double value = element(data, dtype_of(layout.type), j * layout.ld + i);
      if (tf32) {
        const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value)) + 0x1000u;
        value = static_cast<double>(std::bit_cast<float>(bits & 0xFFFFE000u));
      }
      result[static_cast<std::size_t>(t ? i * rows + j : j * rows + i)] = value;
    }
  return result;
}

double gelu(double z) { return 0.5 * z * (1 + std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z))); }
double gelu_slope(double z) {
  const double t = std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z));
  return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * z * z);
}

/// The library has no algorithm for it.
bool is_impossible(const FakeDescription& d) { return is_bgradb(d.epilogue) && d.transpose_b != CUBLAS_OP_T; }

void check_request(const FakeDescription& d, const FakeLayout& A, const FakeLayout& B, const FakeLayout& C,
                   const FakeLayout& D) {
  const std::int64_t k = d.transpose_a == CUBLAS_OP_T ? A.rows : A.cols;
  demand((d.transpose_a == CUBLAS_OP_T ? A.cols : A.rows) == D.rows, "op(A) has not D's rows");
  demand((d.transpose_b == CUBLAS_OP_T ? B.rows : B.cols) == D.cols, "op(B) has not D's columns");
  demand((d.transpose_b == CUBLAS_OP_T ? B.cols : B.rows) == k, "op(A) and op(B) do not fit");
  demand(C.rows == D.rows && C.cols == D.cols && C.type == D.type, "C is not like D");
  demand(A.type == B.type, "A and B differ in type");
  demand(D.rows > 0 && D.cols > 0 && k > 0, "an extent is 0");
  for (const FakeLayout* l : {&A, &B, &C, &D}) demand(l->ld >= l->rows, "a leading dimension is too small");
  demand(D.type == A.type || D.type == CUDA_R_32F, "D is neither of A's type nor fp32");
  demand((A.type == CUDA_R_64F) == (d.compute == CUBLAS_COMPUTE_64F), "fp64 and its compute type go together");
  demand((d.scale == CUDA_R_64F) == (A.type == CUDA_R_64F), "the scale type is wrong");
  if (uses_bias(d.epilogue)) demand(d.bias != nullptr, "the epilogue needs a bias pointer");
  if (has(d.epilogue, 128)) {
    demand(d.aux != nullptr, "the epilogue needs an aux pointer");
    demand(alignment_of(d.aux) >= 16, "the aux buffer is not aligned to 16 bytes");
    const bool gelu = has(d.epilogue, CUBLASLT_EPILOGUE_GELU) || has(d.epilogue, 64);
    demand(d.aux_ld >= D.rows && d.aux_ld % (gelu ? 8 : 128) == 0, "the aux leading dimension is wrong");
  }
}

}  // namespace

extern "C" {

const char* cublasLtGetStatusName(cublasStatus_t) { return "CUBLAS_STATUS_FAKE"; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "a status of the fake cuBLASLt"; }
std::size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return *handle = reinterpret_cast<cublasLtHandle_t>(new int), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return delete reinterpret_cast<int*>(handle), CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new FakeDescription{compute, scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return delete &fake(desc), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  FakeDescription& d = fake(desc);
  const auto take = [&](auto& field) {
    demand(bytes == sizeof field, "an attribute has the wrong size");
    std::memcpy(&field, value, bytes);
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: take(d.transpose_a); break;
    case CUBLASLT_MATMUL_DESC_TRANSB: take(d.transpose_b); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: take(d.epilogue); break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: take(d.bias); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: take(d.aux); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: take(d.aux_ld); break;
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: take(d.multiprocessors); break;
    default: stop("an unknown attribute of a product");
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t cols, std::int64_t ld) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      new FakeLayout{type, static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols), ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return delete &fake(layout), CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new FakePreference), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return delete &fake(preference), CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  FakePreference& p = fake(preference);
  const auto take = [&](auto& field) {
    demand(bytes == sizeof field, "an attribute has the wrong size");
    std::memcpy(&field, value, bytes);
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: take(p.workspace); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: take(p.alignment[0]); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: take(p.alignment[1]); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: take(p.alignment[2]); break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: take(p.alignment[3]); break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: take(p.schemes); break;
    default: stop("an unknown attribute of a preference");
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void* value,
                                                    std::size_t bytes, std::size_t* written) {
  FakeAlgorithm algorithm;
  std::memcpy(&algorithm, algo, sizeof algorithm);
  demand(bytes == sizeof(std::int32_t), "an attribute of an algorithm has the wrong size");
  const auto number = attribute == CUBLASLT_ALGO_CONFIG_ID ? static_cast<std::int32_t>(algorithm.number) : 0;
  std::memcpy(value, &number, sizeof number);
  return *written = bytes, CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t A,
                                       cublasLtMatrixLayout_t B, cublasLtMatrixLayout_t C, cublasLtMatrixLayout_t D,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  const FakeDescription& d = fake(desc);
  check_request(d, fake(A), fake(B), fake(C), fake(D));
  FakeAlgorithm algorithm;
  std::memcpy(&algorithm, algo, sizeof algorithm);
  result->workspaceSize = 0;
  for (const std::uint32_t alignment : algorithm.alignment) {
    if (!std::has_single_bit(alignment) || alignment > 256) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool fits = !is_impossible(d) && algorithm.number >= 0 && algorithm.number <= kWrong &&
                    algorithm.extents[0] == fake(D).rows && algorithm.extents[1] == fake(D).cols &&
                    algorithm.alignment[4] <= alignment_of(d.bias) && algorithm.alignment[5] <= alignment_of(d.aux);
  return fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t A,
                                              cublasLtMatrixLayout_t B, cublasLtMatrixLayout_t C,
                                              cublasLtMatrixLayout_t D, cublasLtMatmulPreference_t preference,
                                              int requested, cublasLtMatmulHeuristicResult_t* results, int* count) {
  const FakeDescription& d = fake(desc);
  check_request(d, fake(A), fake(B), fake(C), fake(D));
  *count = 0;
  if (is_impossible(d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const FakePreference& p = fake(preference);
  demand(p.workspace > 0, "no workspace");
  demand(fake(D).type == CUDA_R_32F || fake(D).type == CUDA_R_64F ||
             (p.schemes & (CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) == 0,
         "partial sums of 16 bits are allowed");
  *count = std::min(requested, static_cast<int>(kOffered));
  for (int i = 0; i < *count; ++i) {
    FakeAlgorithm algorithm = {};
    std::copy(p.alignment, p.alignment + 4, algorithm.alignment);
    algorithm.alignment[4] = alignment_of(d.bias);
    algorithm.alignment[5] = alignment_of(d.aux);
    algorithm.number = i;
    algorithm.extents[0] = fake(D).rows;
    algorithm.extents[1] = fake(D).cols;
    results[i] = {};
    std::memcpy(&results[i].algo, &algorithm, sizeof algorithm);
    results[i].state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* A,
                              cublasLtMatrixLayout_t Adesc, const void* B, cublasLtMatrixLayout_t Bdesc,
                              const void* beta, const void* C, cublasLtMatrixLayout_t Cdesc, void* D,
                              cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              std::size_t, cudaStream_t) {
  const FakeDescription& d = fake(desc);
  const FakeLayout& a_layout = fake(Adesc);
  const FakeLayout& b_layout = fake(Bdesc);
  const FakeLayout& c_layout = fake(Cdesc);
  const FakeLayout& d_layout = fake(Ddesc);
  check_request(d, a_layout, b_layout, c_layout, d_layout);
  demand(!is_impossible(d), "BGRADB needs B transposed");
  FakeAlgorithm algorithm;
  std::memcpy(&algorithm, algo, sizeof algorithm);
  const void* pointers[] = {A, B, C, D, d.bias, d.aux};
  for (int i = 0; i < 6; ++i) {
    demand(alignment_of(pointers[i]) >= algorithm.alignment[i], "a pointer is less aligned than its plan says");
  }
  demand(algorithm.extents[0] == d_layout.rows && algorithm.extents[1] == d_layout.cols, "a plan of another size");
  demand(alignment_of(workspace) >= 256, "the workspace is not aligned");
  if (algorithm.number == kRefusing) return CUBLAS_STATUS_NOT_SUPPORTED;

  const bool wide = a_layout.type == CUDA_R_64F;
  const auto scalar = [&](const void* value) {
    return wide ? *static_cast<const double*>(value) : static_cast<double>(*static_cast<const float*>(value));
  };
  demand(scalar(alpha) == 1, "alpha is not 1");
  const double factor = scalar(beta);
  const bool tf32 = d.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const std::vector<double> a = operand(A, a_layout, d.transpose_a, tf32);
  const std::vector<double> b = operand(B, b_layout, d.transpose_b, tf32);
  const std::int64_t m = d_layout.rows;
  const std::int64_t n = d_layout.cols;
  const auto k = static_cast<std::int64_t>(a.size()) / m;
  const Dtype out = dtype_of(d_layout.type);
  const std::uint32_t e = d.epilogue;

  std::vector<double> sums(static_cast<std::size_t>(m));
  std::vector<double> bias_gradient(static_cast<std::size_t>(m));
  for (std::int64_t j = 0; j < n; ++j) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (std::int64_t p = 0; p < k; ++p) {
      const double right = b[static_cast<std::size_t>(j * k + p)];
      for (std::int64_t i = 0; i < m; ++i)
        sums[static_cast<std::size_t>(i)] += a[static_cast<std::size_t>(p * m + i)] * right;
    }
    for (std::int64_t i = 0; i < m; ++i) {
      double v = sums[static_cast<std::size_t>(i)];
      if (factor != 0) v += factor * element(C, out, j * c_layout.ld + i);
      if (algorithm.number == kWrong) v += 1 + v;
      if (!wide) v = static_cast<double>(static_cast<float>(v));
      if (has(e, CUBLASLT_EPILOGUE_BIAS)) v += element(d.bias, out, i);
      auto* mask = static_cast<std::uint8_t*>(d.aux);
      const std::int64_t byte = j * (d.aux_ld / 8) + i / 8;
      const auto bit = static_cast<std::uint8_t>(1u << (i % 8));
      if (has(e, CUBLASLT_EPILOGUE_RELU)) {
        if (has(e, 128)) mask[byte] = static_cast<std::uint8_t>(v >= 0 ? mask[byte] | bit : mask[byte] & ~bit);
        v = v < 0 ? 0 : v;
      } else if (has(e, CUBLASLT_EPILOGUE_GELU)) {
        if (has(e, 128)) store(d.aux, out, j * d.aux_ld + i, v);
        v = gelu(v);
      } else if (has(e, 8)) {
        v = (mask[byte] & bit) != 0 ? v : 0;
      } else if (has(e, 64)) {
        v *= gelu_slope(element(d.aux, out, j * d.aux_ld + i));
      }
      bias_gradient[static_cast<std::size_t>(i)] += v;
      store(D, out, j * d_layout.ld + i, v);
    }
  }
  if (is_gradient(e) && has(e, 16)) {
    for (std::int64_t i = 0; i < m; ++i) store(d.bias, out, i, bias_gradient[static_cast<std::size_t>(i)]);
  }
  if (is_bgradb(e)) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t p = 0; p < k; ++p) sum += b[static_cast<std::size_t>(j * k + p)];
      store(d.bias, out, j, sum);
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
