// What the plan of a product is. Not installed.
//
// A plan holds what cuBLASLt needs to run every product with the same key, that is its description and the algorithm,
// and what is told of the choice. plan_table.h makes plans and keeps them; plan_records.h takes them to plan files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <fusegrad/ops/cuda/blaslt.h>
#include <fusegrad/ops/cuda/plan_key.h>
#include <fusegrad/ops/plans.h>

namespace fusegrad::detail {

struct Plan {
  std::shared_ptr<const Blaslt::Problem> problem = nullptr;
  std::string what = {};
  /// Best first. The first to be accepted stays; empty: there is none.
  std::vector<Algorithm> candidates = {};
  bool proven = false;
  bool searched = false;                             ///< candidates were to be measured
  std::vector<PlanReport::Candidate> measured = {};  ///< the chosen one first
  PlanOrigin origin = PlanOrigin::ranked;
  std::string remark = {};  ///< what was rejected, and why
  const std::string* note = nullptr;
  std::int64_t last_use = 0;
};
using Plans = std::unordered_map<PlanKey, std::unique_ptr<Plan>, PlanKeyHash>;

}  // namespace fusegrad::detail
