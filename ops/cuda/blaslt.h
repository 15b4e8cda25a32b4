// The one door to cuBLASLt: describes matrix products with an epilogue to it, asks for algorithms, and runs them. Not
// installed.
//
// It decides nothing: which of the algorithms runs a product is a matter of plan_table.h. Device, library, workspace,
// math mode and determinism are fixed for a context, which has a handle of its own.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <fusegrad/autograd/branches.h>
#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/cuda/lt_product.h>

namespace fusegrad::detail {

class CudaBackend;

class Blaslt {
 public:
  /// A product as cuBLASLt wants it described, for every product with the same key (plan_key.h).
  struct Problem;

  /// Errors: DeviceError if the library is older than this code was written for; CudaError.
  Blaslt(CudaBackend& backend, const ContextSettings& settings);
  ~Blaslt();
  Blaslt(const Blaslt&) = delete;
  Blaslt& operator=(const Blaslt&) = delete;

  /// cuBLASLt's version: 130100 is 13.1.
  static std::int64_t version();
  /// Bytes that an algorithm may use.
  static std::int64_t workspace_bytes();
  /// Bytes that are held for that.
  std::int64_t held_bytes() const;

  /// Products for which the library offers algorithms that are known to be wrong.
  static bool known_bad(const LtProduct& product);
  /// False for products that cuBLASLt must not be asked to run: kernels could not count their elements.
  bool accepts(const LtProduct& product) const;

  /// Errors: CudaError.
  std::shared_ptr<const Problem> problem_of(const LtProduct& product) const;
  /// Algorithms that cuBLASLt's heuristic offers for the product, best first. Errors: CudaError.
  std::vector<Algorithm> heuristic(const Problem& problem, const LtProduct& product) const;
  /// Algorithms that cuBLASLt offers for the product: its own heuristic's, best first, and those it offers for other
  /// epilogues of the same product, if they do this one. Not those that are known to be wrong, unless asked for.
  std::vector<Algorithm> algorithms(const LtProduct& product, bool with_known_bad = false) const;
  /// True if the algorithm does the product, as the context's settings want it done. Errors: CudaError.
  bool offers(const Problem& problem, const LtProduct& product, const Algorithm& algorithm) const;

  /// Enqueues the product with an algorithm. False, with nothing enqueued, if it does not do it. Errors: CudaError.
  /// `line`: of a step (branches.h); each has a workspace of its own.
  bool launch(const Problem& problem, const LtProduct& product, const Algorithm& algorithm, CUstream_st* stream,
              int line = 0);
  bool launch(const LtProduct& product, const Algorithm& algorithm, CUstream_st* stream);

  /// "algorithm 66, tile 20, stages 35, split 2": the numbers by which cuBLASLt names them.
  static std::string describe(const Algorithm& algorithm);

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
  struct Handle;

  void* workspace(int line);
  /// The number of multiprocessors that a product is to use; 0: all.
  std::int32_t multiprocessors(const LtProduct& product, const Algorithm& algorithm) const;

  CudaBackend& backend_;
  ContextSettings settings_;
  int multiprocessors_;  // that the GPU has
  std::unique_ptr<Handle> handle_;
  std::array<void*, Branches::kLines> workspaces_ = {};
  std::bitset<kEpilogues> absent_;
  std::int64_t element_limit_ = std::int64_t{1} << 31;
};

}  // namespace fusegrad::detail
