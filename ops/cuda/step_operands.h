// Memory in which the ways of a fused step are timed: copies of its operands. Not installed.
#pragma once

#include <cstddef>
#include <cstdint>

#include <fusegrad/autograd/dtype.h>
#include <fusegrad/autograd/execution.h>

namespace fusegrad::detail {

class CudaBackend;

/// Copies of a step's operands, in one block of memory and filled with normal values.
class StepOperands {
 public:
  /// `execution` and `backend` outlive this.
  StepOperands(const CudaExecution& execution, CudaBackend& backend) : execution_(execution), backend_(backend) {}
  ~StepOperands();
  StepOperands(const StepOperands&) = delete;
  StepOperands& operator=(const StepOperands&) = delete;

  /// Runs `assign`, which calls take() for each operand, twice: to add up the sizes, and to hand out the memory.
  /// False if there is not enough. Errors: CudaError.
  template <class F>
  bool allocate(F&& assign) {
    assign();
    if (!allocate()) return false;
    assign();
    return true;
  }

  /// Of all operands.
  std::int64_t bytes() const { return used_; }

  /// Memory for `elements`, aligned as `like` is; null for null. Errors: CudaError.
  void* take(const void* like, std::int64_t elements, Dtype dtype);

 private:
  bool allocate();

  const CudaExecution& execution_;
  CudaBackend& backend_;
  void* block_ = nullptr;
  std::int64_t used_ = 0;
  std::uint32_t seed_ = 100;
};

}  // namespace fusegrad::detail
