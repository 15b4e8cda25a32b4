// What ops/plans.h does, by backend. Not installed.
#pragma once

#include <string>
#include <vector>

#include <fusegrad/autograd/execution.h>
#include <fusegrad/ops/plans.h>

namespace fusegrad::detail {

std::vector<PlanReport> plans(const CpuExecution& execution);
std::vector<PlanReport> plans(const CudaExecution& execution);

void save_plans(const CpuExecution& execution, const std::string& path);
void save_plans(const CudaExecution& execution, const std::string& path);

PlanFileReport load_plans(const CpuExecution& execution, const std::string& path, const LoadPlansOptions& options);
PlanFileReport load_plans(const CudaExecution& execution, const std::string& path, const LoadPlansOptions& options);

}  // namespace fusegrad::detail
