// A matrix product with an epilogue, as cuBLASLt runs it, and an algorithm for it. Not installed.
//
// Views are row-major, as everywhere in fusegrad. cuBLASLt is column-major, where a row-major matrix is its transpose,
// so it is asked for dᵀ = op(b)ᵀ op(a)ᵀ: its A is our b, its B our a, its rows our columns. Vectors and masks that go
// along its rows (bias, bias gradient, relu mask) go along our columns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <fusegrad/ops/linear_kernels.h>
#include <fusegrad/ops/views.h>

namespace fusegrad::detail {

/// What a product does to its sums before it stores them; in v = op(a) op(b) + c:
///   bias        v + bias
///   relu        max(v, 0), of v + bias with bias; aux: writes the bit mask of v >= 0
///   gelu        gelu_tanh(v), of v + bias with bias; aux: writes v, or v + bias
///   drelu       v where the mask's bit is 1, else 0; bgrad: writes its column sums
///   dgelu       v gelu_tanh'(aux); bgrad: writes its column sums
///   bgradb      v; writes the column sums of a, which is transposed
enum class Epilogue : std::uint8_t {
  none,
  bias,
  relu,
  relu_bias,
  relu_aux,
  relu_aux_bias,
  gelu,
  gelu_bias,
  gelu_aux,
  gelu_aux_bias,
  drelu,
  drelu_bgrad,
  dgelu,
  dgelu_bgrad,
  bgradb,
};
inline constexpr std::size_t kEpilogues = 15;

/// cuBLASLt's name: "RELU_AUX_BIAS".
std::string_view name_of(Epilogue epilogue);

/// d = epilogue(op(a) op(b) + c), sums in fp32 (fp64 for f64). No extent is 0.
struct LtProduct {
  ConstMatrix a = {};  ///< [m, k], or [k, m] transposed; f64, f32, bf16 or f16
  kernels::Transpose transpose_a = kernels::Transpose::no;
  ConstMatrix b = {};  ///< [k, n], or [n, k] transposed; a's dtype
  kernels::Transpose transpose_b = kernels::Transpose::no;
  ConstMatrix c = {};  ///< [m, n], d's dtype; may be d; or none
  Matrix d = {};       ///< [m, n], a's dtype or its accumulation dtype
  Epilogue epilogue = Epilogue::none;
  const void* bias = nullptr;     ///< [n], d's dtype
  void* bias_gradient = nullptr;  ///< [n] ([m] for bgradb), d's dtype; overwritten
  void* saved = nullptr;          ///< relu: mask; gelu: matrix of d's dtype; written by forward, read by backward
  std::int64_t saved_ld = 0;      ///< relu: bits, a multiple of 128; gelu: elements, a multiple of 8
  double spare = 0;               ///< share of the multiprocessors that it leaves to other work; changes no bits
};

/// One of cuBLASLt's algorithms with its configuration, as the library packs it.
struct Algorithm {
  std::array<std::uint64_t, 8> words = {};
  bool operator==(const Algorithm&) const = default;
};

/// Length of the sums.
inline std::int64_t reduction_length(const LtProduct& product) {
  return product.transpose_a == kernels::Transpose::yes ? product.a.rows : product.a.cols;
}

/// The vector that goes with the product: bias or bias gradient; or null.
inline const void* bias_pointer(const LtProduct& product) {
  return product.bias_gradient ? product.bias_gradient : product.bias;
}

/// Elements of that vector.
inline std::int64_t bias_size(const LtProduct& product) {
  return product.epilogue == Epilogue::bgradb ? product.d.rows : product.d.cols;
}

constexpr bool is_relu_mask(Epilogue epilogue) {
  return epilogue == Epilogue::relu_aux || epilogue == Epilogue::relu_aux_bias || epilogue == Epilogue::drelu ||
         epilogue == Epilogue::drelu_bgrad;
}

/// True if backward runs it: what was saved is read, not written.
constexpr bool is_backward(Epilogue epilogue) { return epilogue >= Epilogue::drelu; }

/// Bytes that what is saved takes.
inline std::int64_t saved_bytes(const LtProduct& product) {
  if (!product.saved) return 0;
  if (is_relu_mask(product.epilogue)) return product.d.rows * product.saved_ld / 8;
  return product.d.rows * product.saved_ld * static_cast<std::int64_t>(size_of(product.d.dtype));
}

/// Largest power of two up to 256 that divides the address; 256 for null. All that an algorithm may ask of an address.
std::uint32_t alignment_of(const void* pointer);

/// "RELU_AUX_BIAS 4096 x 2048 x 1024 bf16 to f32": rows, columns and reduction length.
std::string to_string(const LtProduct& product);

}  // namespace fusegrad::detail
