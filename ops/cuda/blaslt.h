// The one door to cuBLASLt: matrix products with an epilogue. Not installed.
//
// Views are row-major, as everywhere in fusegrad. cuBLASLt is column-major, where a row-major matrix is its transpose,
// so it is asked for dᵀ = op(b)ᵀ op(a)ᵀ: its A is our b, its B our a, its rows our columns. Vectors and masks that go
// along its rows (bias, bias gradient, relu mask) go along our columns.
//
// Every product has a plan: descriptors and the algorithm chosen for its key, which is all that cuBLASLt's choice can
// depend on: sizes, leading dimensions, dtypes, transposes, epilogue, whether c is added and is d itself, and the
// alignment of every pointer. Device, library, workspace, math mode and determinism are fixed for a context, which has
// its own plans. The first use of a key asks the library's heuristic; later ones look the plan up and allocate nothing.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>

#include <fusegrad/autograd/context_state.h>
#include <fusegrad/ops/linear_kernels.h>
#include <fusegrad/ops/views.h>

namespace fusegrad::detail {

class CudaBackend;

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
};

class Blaslt {
 public:
  /// Errors: DeviceError if the library is older than this code was written for; CudaError.
  Blaslt(CudaBackend& backend, const ContextSettings& settings);
  ~Blaslt();
  Blaslt(const Blaslt&) = delete;
  Blaslt& operator=(const Blaslt&) = delete;

  /// Enqueues the product. False, with nothing enqueued, if cuBLASLt has no algorithm for it that is known to be right.
  /// Errors: CudaError for any other failure.
  bool run(const LtProduct& product, Counters& counters);

  /// Rows that one product may have, when the longest row of its operands takes `ld` elements (or mask bits): kernels
  /// that count elements in 32 bits must not see 2^31 of them. At least 1.
  std::int64_t rows_per_product(std::int64_t ld) const { return std::max<std::int64_t>(1, (element_limit_ - 1) / ld); }

  /// For tests: makes `epilogue` one for which there is no algorithm, or undoes that.
  void force_no_algorithm(Epilogue epilogue, bool absent = true) {
    absent_.set(static_cast<std::size_t>(epilogue), absent);
  }
  /// For tests: as if kernels could count only to `limit`.
  void set_element_limit(std::int64_t limit) { element_limit_ = limit; }

 private:
  struct Key {
    std::array<std::uint64_t, 9> words;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  struct Plan;

  static Key key_of(const LtProduct& product);
  bool within_limits(const LtProduct& product) const;
  Plan& plan_for(const LtProduct& product, Counters& counters);
  std::unique_ptr<Plan> make_plan(const LtProduct& product) const;

  CudaBackend& backend_;
  ContextSettings settings_;
  struct Handle;
  std::unique_ptr<Handle> handle_;
  void* workspace_ = nullptr;
  std::unordered_map<Key, std::unique_ptr<Plan>, KeyHash> plans_;
  std::bitset<kEpilogues> absent_;
  std::int64_t element_limit_ = std::int64_t{1} << 31;
};

}  // namespace fusegrad::detail
