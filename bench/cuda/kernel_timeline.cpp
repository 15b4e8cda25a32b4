// A timeline of the kernels inside captured graphs, for any program that runs under it:
//
//   CUDA_INJECTION64_PATH=build/cuda/bench/cuda/libkernel_timeline.so
//     build/cuda/bench/train_step --device gpu --mode graph --workloads A2 --repeats 5
//
// A library that the CUDA driver loads into the program. It records every kernel, copy and fill by CUPTI's activity
// interface, and when the program ends prints, of the graph that was launched most often, the launch whose length is
// the median: when each node started, how long it ran, on which stream, and for how much of the launch anything ran.
// Recording makes the gaps between nodes longer, by about a microsecond each; the kernels themselves run as always.
// KERNEL_TIMELINE names a file to write to instead of standard error.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <cupti.h>
#include <cxxabi.h>
#include <fmt/format.h>

namespace {

constexpr std::size_t kBufferBytes = std::size_t{8} << 20;
constexpr std::size_t kBufferAlignment = 8;
constexpr double kNsPerUs = 1000;

struct Node {
  std::uint64_t start = 0;  // ns
  std::uint64_t end = 0;    // ns
  std::uint32_t stream = 0;
  std::string name;
};

struct Launch {
  std::vector<Node> nodes;

  std::uint64_t start() const { return std::ranges::min(nodes, {}, &Node::start).start; }
  std::uint64_t end() const { return std::ranges::max(nodes, {}, &Node::end).end; }
};

/// Launches of a graph, by the number that CUPTI gives them.
using Launches = std::map<std::uint32_t, Launch>;

struct Recorded {
  std::mutex mutex;
  std::map<std::uint32_t, Launches> graphs;
  std::size_t lost = 0;
};

/// Lives until the process is gone: buffers may come back late.
Recorded& recorded() {
  static auto* const all = new Recorded;
  return *all;
}

/// Stops the program: a timeline that lacks something would mislead.
void check(CUptiResult status, const char* call) {
  if (status == CUPTI_SUCCESS) return;
  const char* text = "?";
  cuptiGetResultString(status, &text);
  fmt::print(stderr, "kernel_timeline: {} failed: {}\n", call, text);
  std::_Exit(1);
}

/// A kernel's name without parameters and namespaces.
std::string short_name(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(abi::__cxa_demangle(mangled, nullptr, nullptr, &status),
                                                          &std::free);
  std::string name = status == 0 ? plain.get() : mangled;
  for (const char* drop :
       {"void ", "fusegrad::kernels::", "fusegrad::detail::", "fusegrad::", "(anonymous namespace)::"}) {
    for (std::size_t at = name.find(drop); at != std::string::npos; at = name.find(drop, at)) {
      name.erase(at, std::string(drop).size());
    }
  }
  // The parameters come last, behind the template arguments.
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0) return name.substr(0, i);
  }
  return name;
}

template <class Activity>
void record(const CUpti_Activity* record, std::string name) {
  const auto& activity = *reinterpret_cast<const Activity*>(record);
  if (activity.graphId == 0) return;
  recorded().graphs[activity.graphId][activity.correlationId].nodes.push_back(
      {activity.start, activity.end, activity.streamId, std::move(name)});
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *size = *buffer ? kBufferBytes : 0;
  *most_records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t /*size*/,
                          std::size_t valid) {
  const std::unique_ptr<std::uint8_t, decltype(&std::free)> owned(buffer, &std::free);
  const std::scoped_lock lock(recorded().mutex);
  CUpti_Activity* next = nullptr;
  while (valid != 0 && cuptiActivityGetNextRecord(buffer, valid, &next) == CUPTI_SUCCESS) {
    if (next->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      record<CUpti_ActivityKernel10>(next, short_name(reinterpret_cast<const CUpti_ActivityKernel10*>(next)->name));
    } else if (next->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      record<CUpti_ActivityMemcpy6>(next, "copy");
    } else if (next->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      record<CUpti_ActivityMemset4>(next, "fill");
    }
  }
  std::size_t lost = 0;
  check(cuptiActivityGetNumDroppedRecords(context, stream, &lost), "cuptiActivityGetNumDroppedRecords");
  recorded().lost += lost;
}

/// The launch whose length is the median.
Launch median_of(Launches& launches) {
  std::vector<Launch*> sorted;
  for (auto& [number, launch] : launches) sorted.push_back(&launch);
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  const auto length = [](const Launch* launch) { return launch->end() - launch->start(); };
  std::ranges::nth_element(sorted, middle, {}, length);
  std::ranges::sort((*middle)->nodes, {}, &Node::start);
  return **middle;
}

void print(std::FILE* file, std::size_t launches, const Launch& launch) {
  const std::uint64_t start = launch.start();
  std::uint64_t busy = 0;
  std::uint64_t until = start;
  for (const Node& node : launch.nodes) {  // by their starts
    if (node.end > until) busy += node.end - std::max(until, node.start);
    until = std::max(until, node.end);
  }
  fmt::print(file, "{} nodes, the middle of {} launches: {:.1f} us, something running for {:.1f} us\n",
             launch.nodes.size(), launches, static_cast<double>(launch.end() - start) / kNsPerUs,
             static_cast<double>(busy) / kNsPerUs);
  fmt::print(file, "{:>10} {:>9} {:>7}  node\n", "start", "us", "stream");
  for (const Node& node : launch.nodes) {
    fmt::print(file, "{:10.1f} {:9.1f} {:7}  {}\n", static_cast<double>(node.start - start) / kNsPerUs,
               static_cast<double>(node.end - node.start) / kNsPerUs, node.stream, node.name);
  }
}

void report() {
  check(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  const std::scoped_lock lock(recorded().mutex);
  const char* path = std::getenv("KERNEL_TIMELINE");
  std::FILE* file = path ? std::fopen(path, "w") : stderr;
  if (!file) {
    fmt::print(stderr, "kernel_timeline: cannot write \"{}\"\n", path);
    return;
  }
  if (recorded().lost != 0) fmt::print(file, "{} records were lost\n", recorded().lost);
  auto& graphs = recorded().graphs;
  const auto most = std::ranges::max_element(graphs, {}, [](const auto& graph) { return graph.second.size(); });
  if (most == graphs.end()) {
    fmt::print(file, "no graph was launched\n");
  } else {
    print(file, most->second.size(), median_of(most->second));
  }
  if (path) std::fclose(file);
}

}  // namespace

/// Called by the driver before the program's first call.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  check(cuptiActivityRegisterCallbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks");
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    check(cuptiActivityEnable(kind), "cuptiActivityEnable");
  }
  std::atexit(report);
  return 1;
}
