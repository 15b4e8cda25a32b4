#include "bench/workloads.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fusegrad/autograd/error.h>

namespace fusegrad::bench {
namespace {

template <class Workload>
std::vector<Workload> selected(const std::vector<Workload>& all, const std::vector<std::string>& names,
                               std::string_view device) {
  for (const std::string& name : names) {
    if (std::ranges::find(all, name, &Workload::name) == all.end()) {
      throw ValueError(fmt::format("there is no workload \"{}\"", name));
    }
  }
  std::vector<Workload> chosen;
  std::ranges::copy_if(all, std::back_inserter(chosen), [&](const Workload& workload) {
    if (names.empty()) return is_for_cpu(workload.name) == (device == "cpu");
    return std::ranges::find(names, workload.name) != names.end();
  });
  return chosen;
}

}  // namespace

const std::vector<TrainingWorkload>& training_workloads() {
  static const std::vector<TrainingWorkload> all{
      {"A", 128, {784, 512, 512, 16}, "tf32"},
      {"A2", 1024, {784, 1024, 1024, 1024, 16}, "tf32"},
      {"B", 1024, {784, 1024, 1024, 1024, 16}, "bf16"},
      {"mid", 4096, {2048, 2048, 2048, 2048, 2048}, "bf16"},
      {"C", 16384, {4096, 4096, 4096, 4096, 4096}, "bf16"},
      {"D", 8192, {4096, 16384, 4096}, "bf16"},
      {"E", 262144, {32, 64, 64, 64, 64, 16}, "bf16"},
      {"E2", 262144, {32, 128, 128, 128, 128, 16}, "bf16"},
      {"cpu-small", 32, {64, 64, 64, 10}, "fp32"},
      {"cpu-A", 128, {784, 512, 512, 10}, "fp32"},
      {"cpu-B", 1024, {784, 1024, 1024, 1024, 10}, "fp32"},
      {"cpu-E", 16384, {32, 64, 64, 64, 64, 16}, "fp32"},
  };
  return all;
}

const std::vector<InferenceWorkload>& inference_workloads() {
  static const std::vector<InferenceWorkload> all{
      {"I1", {1}, {4096, 16384, 4096}},      {"I2", {16}, {4096, 16384, 4096}},
      {"I3", {512}, {4096, 16384, 4096}},    {"I4", {2048}, {4096, 16384, 4096}},
      {"I5", {4, 512}, {4096, 16384, 4096}}, {"I6", {16, 128}, {4096, 16384, 4096}},
      {"P", {65536}, {16384, 8192}},         {"cpu-I1", {1}, {512, 2048, 512}},
      {"cpu-I2", {16}, {512, 2048, 512}},    {"cpu-I3", {512}, {512, 2048, 512}},
  };
  return all;
}

std::int64_t rows_of(const InferenceWorkload& workload) {
  std::int64_t rows = 1;
  for (const std::int64_t extent : workload.batch) rows *= extent;
  return rows;
}

std::vector<TrainingWorkload> select(const std::vector<TrainingWorkload>& all, const std::vector<std::string>& names,
                                     std::string_view device) {
  return selected(all, names, device);
}

std::vector<InferenceWorkload> select(const std::vector<InferenceWorkload>& all, const std::vector<std::string>& names,
                                      std::string_view device) {
  return selected(all, names, device);
}

std::string to_json(const TrainingWorkload& workload) {
  const nlohmann::ordered_json line{{"workload", workload.name},
                                    {"batch", {workload.batch}},
                                    {"widths", workload.widths},
                                    {"policy", workload.policy}};
  return line.dump();
}

std::string to_json(const InferenceWorkload& workload) {
  const nlohmann::ordered_json line{{"workload", workload.name},
                                    {"batch", workload.batch},
                                    {"widths", workload.widths},
                                    {"policy", is_for_cpu(workload.name) ? "fp32" : "bf16"}};
  return line.dump();
}

}  // namespace fusegrad::bench
