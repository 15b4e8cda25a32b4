// Plans of products on their way to plan files and back. Not installed.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include <fusegrad/autograd/context_state.h>
#include <fusegrad/ops/cuda/plan.h>
#include <fusegrad/ops/plan_file.h>

namespace fusegrad::detail {

class CudaBackend;

/// An algorithm that a file has for a product.
struct Proposal {
  PlanRecord record = {};
  Algorithm algorithm = {};
  bool trusted = false;
};
using Proposals = std::unordered_map<PlanKey, Proposal, PlanKeyHash>;

/// What the choices of a context depend on beside their keys. Errors: CudaError.
PlanSource plan_source_of(const CudaBackend& backend, const ContextSettings& settings);

/// What was measured or verified, and what was read and is not used yet.
std::vector<PlanRecord> records_of(const Plans& plans, const Proposals& proposals);

/// Not trusted. None if the record is of another subject or of another form; else its key is one of a product.
std::optional<Proposal> proposal_of(const PlanRecord& record);

}  // namespace fusegrad::detail
