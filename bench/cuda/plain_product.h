// A matrix product and nothing else, by cuBLASLt itself: what the fused steps are compared with.
//
// It knows nothing of the library that it judges: no plans, no epilogues. Matrices are row-major tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/tensor.h>

namespace fusegrad::bench {

/// A handle of cuBLASLt and room for the partial sums of products that run at the same time on two streams.
class ProductLibrary {
 public:
  /// Errors: CudaError.
  explicit ProductLibrary(const Context& context);
  ~ProductLibrary();
  ProductLibrary(const ProductLibrary&) = delete;
  ProductLibrary& operator=(const ProductLibrary&) = delete;

  cublasLtHandle_t handle() const { return handle_; }
  void* workspace(int lane) { return workspaces_[static_cast<std::size_t>(lane)].mutable_raw(); }

 private:
  cublasLtHandle_t handle_ = nullptr;
  std::vector<Tensor> workspaces_;
};

/// The three products of a layer of x [batch, in], w [out, in], y [batch, out]:
///   forward          y = x wᵀ
///   input_gradient   x = y w
///   weight_gradient  w = yᵀ x
enum class Form : std::uint8_t { forward, input_gradient, weight_gradient };

class PlainProduct {
 public:
  /// Asks the library's heuristic for algorithms, times each on `stream` and keeps the fastest. f32 tensors are
  /// multiplied in tf32 or fp32, as `math` says; sums are fp32. Errors: CudaError, also if there is no algorithm.
  PlainProduct(ProductLibrary& library, cudaStream_t stream, Form form, const Tensor& left, const Tensor& right,
               Tensor result, MathMode math);
  ~PlainProduct();
  PlainProduct(PlainProduct&& other) noexcept;
  PlainProduct& operator=(PlainProduct&&) = delete;

  /// Enqueues the product. Products on different streams use different lanes. Errors: CudaError.
  void run(cudaStream_t stream, int lane) const;

 private:
  struct Problem;
  std::unique_ptr<Problem> problem_;
};

/// A captured graph of what `record` enqueues on a stream.
class CapturedGraph {
 public:
  /// Errors: CudaError; whatever `record` throws.
  CapturedGraph(cudaStream_t stream, const std::function<void()>& record);
  ~CapturedGraph();
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  /// Enqueues the graph on the stream that it was captured from. Errors: CudaError.
  void launch() const;

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace fusegrad::bench
