// What a choice depends on: the key by which a plan is found, in a context and in a plan file. Not installed.
//
// Of a product: sizes, leading dimensions, dtypes, transposes, epilogue, whether c is added and is d itself, and the
// alignment of every pointer. Of a fused step the same of its operands. Device, library, workspace, math mode and
// determinism are fixed for a context, which has its own plans.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <fusegrad/ops/cuda/lt_product.h>
#include <fusegrad/ops/linear_kernels.h>
#include <fusegrad/ops/plan_file.h>

namespace fusegrad::detail {

/// All that a choice depends on. Plan files hold these words: whoever changes what one of them means raises
/// kPlanFileVersion.
struct PlanKey {
  std::array<std::uint64_t, 9> words = {};
  bool operator==(const PlanKey&) const = default;
};
struct PlanKeyHash {
  std::size_t operator()(const PlanKey& key) const noexcept;
};

PlanKey key_of(const LtProduct& product);
PlanKey key_of(const kernels::LinearForward& args);
PlanKey key_of(const kernels::LinearInputGradient& args);
PlanKey key_of(const kernels::LinearWeightGradient& args);
/// None if the record's has another number of words.
std::optional<PlanKey> key_of(const PlanRecord& record);

}  // namespace fusegrad::detail
