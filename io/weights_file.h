// save_weights and load_weights through system calls of the caller's choice. Not installed.
#pragma once

#include <string>

#include <fusegrad/autograd/file.h>
#include <fusegrad/io/weights.h>

namespace fusegrad::detail {

void save_weights(const std::string& path, const ParameterSet& parameters, const WeightsOptions& options,
                  FileCalls& calls);
void load_weights(const std::string& path, const ParameterSet& parameters, const WeightsOptions& options,
                  FileCalls& calls);

}  // namespace fusegrad::detail
