// A CPU has one way for everything: nothing to choose, nothing to keep.
#include <fusegrad/ops/plan_backends.h>
#include <fusegrad/ops/plan_file.h>

namespace fusegrad::detail {
namespace {

PlanReport only(const char* what, const char* way) {
  return {.what = what, .candidates = {{.name = way}}, .kind = PlanKind::step};
}

PlanSource cpu_source() { return {.card = "cpu", .math = "fp32", .deterministic = true}; }

}  // namespace

std::vector<PlanReport> plans(const CpuExecution&) {
  return {only("backward step, dx", "one pass: product, activation gradient, bias gradient"),
          only("bias gradient with dw", "one pass: product and column sum"),
          only("forward step, y", "one pass: product, bias, activation")};
}

void save_plans(const CpuExecution&, const std::string& path) { write_plan_section(path, {.source = cpu_source()}); }

PlanFileReport load_plans(const CpuExecution&, const std::string& path, const LoadPlansOptions&) {
  PlanFileReport report = read_plan_section(path, cpu_source()).report;
  if (report.plans != 0) report = {.ignored = "it has plans for a CPU, which has none"};
  return report;
}

}  // namespace fusegrad::detail
