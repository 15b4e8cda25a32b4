#include <algorithm>
#include <utility>

#include <fusegrad/autograd/cuda/device.h>
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/ops/cuda/plan_records.h>

namespace fusegrad::detail {

PlanSource plan_source_of(const CudaBackend& backend, const ContextSettings& settings) {
  return {.card = cuda_card(backend.device().index),
          .driver = cuda_driver_version(),
          .library = Blaslt::version(),
          .workspace = Blaslt::workspace_bytes(),
          .math = settings.math == MathMode::tf32 ? "tf32" : "fp32",
          .deterministic = settings.deterministic};
}

std::vector<PlanRecord> records_of(const Plans& plans, const Proposals& proposals) {
  std::vector<PlanRecord> all;
  for (const auto& [key, plan] : plans) {
    if (plan->origin == PlanOrigin::ranked || plan->candidates.empty()) continue;
    const Algorithm& algorithm = plan->candidates.front();
    all.push_back({.subject = PlanSubject::product,
                   .key = {key.words.begin(), key.words.end()},
                   .algorithm = {algorithm.words.begin(), algorithm.words.end()},
                   .what = plan->what,
                   .candidates = plan->measured});
  }
  for (const auto& [key, proposal] : proposals) {
    if (!plans.contains(key)) all.push_back(proposal.record);
  }
  return all;
}

std::optional<Proposal> proposal_of(const PlanRecord& record) {
  Proposal proposal{.record = record};
  if (record.subject != PlanSubject::product || !key_of(record) || record.candidates.empty() ||
      record.algorithm.size() != proposal.algorithm.words.size()) {
    return std::nullopt;
  }
  std::ranges::copy(record.algorithm, proposal.algorithm.words.begin());
  return proposal;
}

}  // namespace fusegrad::detail
