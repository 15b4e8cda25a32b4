// Operands on which a product is tried before it is trusted: timed on realistic data, and verified. Not installed.
//
// Verification needs no tolerance where the arithmetic is exact: factors are thin fills of -1, 0 and 1, so thin that
// every sum is an integer that every dtype holds, in whatever order it is added and however often it is rounded (many
// of cuBLASLt's 16-bit algorithms round a sum before they add a bias or a former contribution). The reference is a
// product by the library's own kernel and the definition of the epilogue, applied element by element. Outputs are
// poisoned first, with two patterns in two runs, and what lies between their rows and behind them must still be poison
// afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/cuda/lt_product.h>

namespace fusegrad::detail {

class CudaBackend;

class Trial {
 public:
  /// Operands like those of `like`: the same sizes, leading dimensions, dtypes and alignment. Null if there is no
  /// memory for them. The context's stream must not be capturing. Errors: CudaError.
  static std::unique_ptr<Trial> make(CudaBackend& backend, const LtProduct& like);
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  const LtProduct& product() const { return product_; }
  /// Of the product's operands.
  std::int64_t bytes() const;

  /// Normally distributed operands: a product of zeros would be faster than any real one.
  void fill(const CudaExecution& execution);

  /// Calls launch(product()), which enqueues the product on the execution's stream or returns false if it cannot.
  /// Returns what is wrong with the result; empty if nothing is. Errors: CudaError.
  std::string_view verify(const CudaExecution& execution, const std::function<bool(const LtProduct&)>& launch);

 private:
  Trial(CudaBackend& backend, void* block, const LtProduct& like);

  void fill_exactly(const CudaExecution& execution);
  void poison(const CudaExecution& execution, unsigned char pattern);

  CudaBackend& backend_;
  void* block_;
  LtProduct product_;
  // Apart from the operands, in the same block.
  void* former_ = nullptr;     // c, also where the product adds to d itself
  void* reference_ = nullptr;  // op(a) op(b), tight, in the accumulation dtype
  unsigned long long* faults_ = nullptr;
  bool has_reference_ = false;
};

}  // namespace fusegrad::detail
