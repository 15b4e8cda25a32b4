// Plans and plan files of a GPU's context: those of its products and of its fused steps together.
#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/device.h>
#include <fusegrad/ops/cuda/linear_ways.h>
#include <fusegrad/ops/cuda/plan_table.h>
#include <fusegrad/ops/plan_backends.h>
#include <fusegrad/ops/plan_file.h>

namespace fusegrad::detail {
namespace {

template <class T>
std::vector<T> together(std::vector<T> first, std::vector<T> second) {
  first.insert(first.end(), std::make_move_iterator(second.begin()), std::make_move_iterator(second.end()));
  return first;
}

void save(CudaState& state, const std::string& path) {
  PlanTable& table = state.plan_table();
  write_plan_section(path, {.source = table.source(), .records = together(table.records(), state.ways().records())});
}

PlanFileReport load(CudaState& state, const std::string& path, bool verify) {
  auto [section, report] = read_plan_section(path, state.plan_table().source());
  report.plans = state.plan_table().propose(section.records, verify) + state.ways().propose(section.records);
  return report;
}

}  // namespace

std::vector<PlanReport> plans(const CudaExecution& execution) {
  return together(execution.state.ways().reports(), execution.state.plan_table().reports());
}

void save_plans(const CudaExecution& execution, const std::string& path) { save(execution.state, path); }

PlanFileReport load_plans(const CudaExecution& execution, const std::string& path, const LoadPlansOptions& options) {
  return load(execution.state, path, options.verify);
}

void load_plan_cache(CudaState& state) {
  const std::string& path = state.settings().plan_cache;
  if (path.empty()) return;
  const PlanFileReport report = load(state, path, true);
  // The first run has no file.
  if (report.ignored.empty() || report.ignored == kNoSuchFile) return;
  state.warn(detail::format("the plan cache \"{}\" was ignored: {}", path, report.ignored));
}

void save_plan_cache(CudaState& state) noexcept {
  const std::string& path = state.settings().plan_cache;
  if (path.empty()) return;
  try {
    if (state.plan_table().has_measured() || state.ways().has_measured()) save(state, path);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no one is left to tell; the file is as it was
  }
}

}  // namespace fusegrad::detail
