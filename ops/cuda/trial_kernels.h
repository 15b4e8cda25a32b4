// Kernels that fill the operands of a trial and judge its results. Not installed.
#pragma once

#include <cstdint>

#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/cuda/lt_product.h>
#include <fusegrad/ops/views.h>

namespace fusegrad::detail {

/// Normally distributed elements, which `seed` decides. Nothing happens if there are none. Errors: CudaError.
void fill_normal(const CudaExecution& execution, const Vector& to, std::uint32_t seed);
/// -1 or 1, with probability `density`, else 0. Nothing happens if there are none. Errors: CudaError.
void fill_thinly(const CudaExecution& execution, const Vector& to, double density, std::uint32_t seed);
/// Any bits. Errors: CudaError.
void fill_bytes(const CudaExecution& execution, void* to, std::int64_t count, std::uint32_t seed);

/// Counts of what is wrong, which the functions below add to.
enum Fault : int { wrong_elements, wrong_saved, wrong_sums, written_outside, kFaults };

struct CheckedElements {
  LtProduct product = {};
  const void* reference = nullptr;  ///< op(a) op(b): [rows, cols] of the accumulation dtype
  const void* former = nullptr;     ///< c, with its leading dimension; or null
  unsigned long long* faults = nullptr;
};
/// Compares d, and what forward saves, with the definition of the epilogue. Errors: CudaError.
void check_elements(const CudaExecution& execution, const CheckedElements& args);

/// Compares `sums` with the column sums of `matrix`. Errors: CudaError.
void check_sums(const CudaExecution& execution, const ConstMatrix& matrix, const ConstVector& sums,
                unsigned long long* faults);

/// Counts bytes that are not `pattern`: `rows` rows of `width` bytes, `pitch` apart. Errors: CudaError.
void check_poison(const CudaExecution& execution, const void* from, std::int64_t rows, std::int64_t width,
                  std::int64_t pitch, unsigned char pattern, unsigned long long* faults);

}  // namespace fusegrad::detail
