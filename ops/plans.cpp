#include <fusegrad/ops/dispatch.h>
#include <fusegrad/ops/plan_backends.h>
#include <fusegrad/ops/plans.h>

namespace fusegrad {

std::string_view name_of(PlanOrigin origin) {
  switch (origin) {
    case PlanOrigin::ranked: return "ranked";
    case PlanOrigin::verified: return "verified";
    case PlanOrigin::measured: return "measured";
    case PlanOrigin::file: return "file";
  }
  return "?";
}

std::vector<PlanReport> plans(const Context& context) {
  return dispatch(context, [](const auto& execution) { return detail::plans(execution); });
}

void save_plans(const Context& context, const std::string& path) {
  dispatch(context, [&](const auto& execution) { detail::save_plans(execution, path); });
}

PlanFileReport load_plans(const Context& context, const std::string& path, const LoadPlansOptions& options) {
  return dispatch(context, [&](const auto& execution) { return detail::load_plans(execution, path, options); });
}

}  // namespace fusegrad
