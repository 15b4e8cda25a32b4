#include "bench/cuda/plain_product.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "bench/measure.h"

#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/error.h>

namespace fusegrad::bench {
namespace {

constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;  // what the library's heuristics want on Hopper
constexpr int kCandidates = 8;
constexpr int kRounds = 7;
constexpr double kGraphFlops = 2e11;  // a graph of copies takes a quarter of a millisecond at least
constexpr double kMostCopies = 40;

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw CudaError(fmt::format("{} failed with {}", call, cublasLtGetStatusName(status)));
}
#define FUSEGRAD_BENCH_LT(call) check((call), #call)

cudaDataType_t data_type(Dtype dtype) { return dtype == Dtype::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

/// cuBLASLt is column-major: to it a row-major matrix is its transpose.
cublasLtMatrixLayout_t layout_of(const Tensor& matrix) {
  const auto rows = static_cast<std::uint64_t>(matrix.shape()[0]);
  const auto cols = static_cast<std::uint64_t>(matrix.shape()[1]);
  cublasLtMatrixLayout_t layout = nullptr;
  FUSEGRAD_BENCH_LT(
      cublasLtMatrixLayoutCreate(&layout, data_type(matrix.dtype()), cols, rows, static_cast<std::int64_t>(cols)));
  return layout;
}

/// Microseconds of a launch.
double time_once(cudaStream_t stream, const CapturedGraph& graph) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  FUSEGRAD_CUDA(cudaEventCreate(&begin));
  FUSEGRAD_CUDA(cudaEventCreate(&end));
  FUSEGRAD_CUDA(cudaEventRecord(begin, stream));
  graph.launch();
  FUSEGRAD_CUDA(cudaEventRecord(end, stream));
  FUSEGRAD_CUDA(cudaEventSynchronize(end));
  float milliseconds = 0;
  FUSEGRAD_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
  FUSEGRAD_CUDA(cudaEventDestroy(end));
  FUSEGRAD_CUDA(cudaEventDestroy(begin));
  return 1000.0 * milliseconds;
}

}  // namespace

ProductLibrary::ProductLibrary(const Context& context) {
  FUSEGRAD_BENCH_LT(cublasLtCreate(&handle_));
  for (int lane = 0; lane < 2; ++lane) workspaces_.push_back(Tensor::empty(context, {kWorkspaceBytes}, Dtype::u8));
}

ProductLibrary::~ProductLibrary() { cublasLtDestroy(handle_); }

struct PlainProduct::Problem {
  ProductLibrary& library;
  Tensor first;   // cuBLASLt's A
  Tensor second;  // its B
  Tensor result;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t first_layout = nullptr;
  cublasLtMatrixLayout_t second_layout = nullptr;
  cublasLtMatrixLayout_t result_layout = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};

  ~Problem() {
    cublasLtMatrixLayoutDestroy(result_layout);
    cublasLtMatrixLayoutDestroy(second_layout);
    cublasLtMatrixLayoutDestroy(first_layout);
    cublasLtMatmulDescDestroy(description);
  }

  void run(const cublasLtMatmulAlgo_t& with, cudaStream_t stream, int lane) {
    const float one = 1;
    const float zero = 0;
    FUSEGRAD_BENCH_LT(cublasLtMatmul(library.handle(), description, &one, first.raw(), first_layout, second.raw(),
                                     second_layout, &zero, result.raw(), result_layout, result.mutable_raw(),
                                     result_layout, &with, library.workspace(lane), kWorkspaceBytes, stream));
  }

  std::vector<cublasLtMatmulAlgo_t> candidates() {
    cublasLtMatmulPreference_t preference = nullptr;
    FUSEGRAD_BENCH_LT(cublasLtMatmulPreferenceCreate(&preference));
    const auto bytes = static_cast<std::uint64_t>(kWorkspaceBytes);
    FUSEGRAD_BENCH_LT(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                           sizeof bytes));
    cublasLtMatmulHeuristicResult_t found[kCandidates] = {};
    int count = 0;
    FUSEGRAD_BENCH_LT(cublasLtMatmulAlgoGetHeuristic(library.handle(), description, first_layout, second_layout,
                                                     result_layout, result_layout, preference, kCandidates, found,
                                                     &count));
    cublasLtMatmulPreferenceDestroy(preference);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < count; ++i) {
      if (found[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(found[i].algo);
    }
    if (algorithms.empty()) throw CudaError("cuBLASLt offers no algorithm for a plain product");
    return algorithms;
  }

  /// In turn, round after round, as graphs of copies: what is short takes the host longer to launch than to run.
  void choose(cudaStream_t stream) {
    const std::vector<cublasLtMatmulAlgo_t> algorithms = candidates();
    // Each of the three extents of a product is in two of the three sizes.
    const double flops = 2 * std::sqrt(static_cast<double>(first.size()) * static_cast<double>(second.size()) *
                                       static_cast<double>(result.size()));
    const int copies = static_cast<int>(std::clamp(kGraphFlops / flops, 1.0, kMostCopies));
    std::vector<std::unique_ptr<CapturedGraph>> graphs;
    for (const cublasLtMatmulAlgo_t& candidate : algorithms) {
      run(candidate, stream, 0);  // whatever is set up once, is
      FUSEGRAD_CUDA(cudaStreamSynchronize(stream));
      graphs.push_back(std::make_unique<CapturedGraph>(stream, [&] {
        for (int i = 0; i < copies; ++i) run(candidate, stream, 0);
      }));
    }
    std::vector<std::vector<double>> times(graphs.size());
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < graphs.size(); ++i) times[i].push_back(time_once(stream, *graphs[i]));
    }
    std::vector<double> medians;
    for (const std::vector<double>& of_one : times) medians.push_back(median(of_one));
    algorithm = algorithms[static_cast<std::size_t>(std::ranges::min_element(medians) - medians.begin())];
  }
};

PlainProduct::PlainProduct(ProductLibrary& library, cudaStream_t stream, Form form, const Tensor& left,
                           const Tensor& right, Tensor result, MathMode math)
    : problem_(new Problem{.library = library, .first = right, .second = left, .result = std::move(result)}) {
  Problem& problem = *problem_;
  const bool tf32 = left.dtype() == Dtype::f32 && math == MathMode::tf32;
  FUSEGRAD_BENCH_LT(cublasLtMatmulDescCreate(&problem.description,
                                             tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, bool transposed) {
    const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    FUSEGRAD_BENCH_LT(cublasLtMatmulDescSetAttribute(problem.description, attribute, &operation, sizeof operation));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, form == Form::forward);
  set(CUBLASLT_MATMUL_DESC_TRANSB, form == Form::weight_gradient);
  problem.first_layout = layout_of(problem.first);
  problem.second_layout = layout_of(problem.second);
  problem.result_layout = layout_of(problem.result);
  problem.choose(stream);
}

PlainProduct::~PlainProduct() = default;
PlainProduct::PlainProduct(PlainProduct&& other) noexcept = default;

void PlainProduct::run(cudaStream_t stream, int lane) const { problem_->run(problem_->algorithm, stream, lane); }

CapturedGraph::CapturedGraph(cudaStream_t stream, const std::function<void()>& record) : stream_(stream) {
  FUSEGRAD_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    record();
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream, &graph));
    throw;
  }
  FUSEGRAD_CUDA(cudaStreamEndCapture(stream, &graph));
  const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
  cudaGraphDestroy(graph);
  FUSEGRAD_CUDA(status);
}

CapturedGraph::~CapturedGraph() { cudaGraphExecDestroy(executable_); }

void CapturedGraph::launch() const { FUSEGRAD_CUDA(cudaGraphLaunch(executable_, stream_)); }

}  // namespace fusegrad::bench
