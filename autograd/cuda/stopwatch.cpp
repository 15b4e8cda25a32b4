#include <algorithm>
#include <limits>

#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/cuda/stopwatch.h>

namespace fusegrad::detail {
namespace {

constexpr double kShort = 200;  // microseconds, below which eager launches might be timed and not the work
constexpr int kCopies = 20;     // of short work in a graph
constexpr int kRounds = 7;
constexpr int kFirstLooks = 3;     // the least of them counts: a clock that has just woken up is slow
constexpr double kHopeless = 1.5;  // times the best of the first looks

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

/// Several copies of a call as one graph.
class Stopwatch::Lap {
 public:
  Lap(const Stream& stream, const std::function<void()>& call, int copies) : stream_(stream) {
    FUSEGRAD_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      for (int i = 0; i < copies; ++i) call();
    } catch (...) {
      drop_cuda_error(cudaStreamEndCapture(stream.get(), &graph));
      if (graph) drop_cuda_error(cudaGraphDestroy(graph));
      throw;
    }
    FUSEGRAD_CUDA(cudaStreamEndCapture(stream.get(), &graph));
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    drop_cuda_error(cudaGraphDestroy(graph));
    FUSEGRAD_CUDA(status);
  }
  ~Lap() {
    if (executable_) drop_cuda_error(cudaGraphExecDestroy(executable_));
  }
  Lap(const Lap&) = delete;
  Lap& operator=(const Lap&) = delete;

  void run() const { FUSEGRAD_CUDA(cudaGraphLaunch(executable_, stream_.get())); }

 private:
  const Stream& stream_;
  cudaGraphExec_t executable_ = nullptr;
};

Stopwatch::Stopwatch() {
  FUSEGRAD_CUDA(cudaEventCreate(&begin_));
  FUSEGRAD_CUDA(cudaEventCreate(&end_));
  int device = 0;
  int bytes = 0;
  FUSEGRAD_CUDA(cudaGetDevice(&device));
  FUSEGRAD_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device));
  cache_bytes_ = bytes;
}

Stopwatch::~Stopwatch() {
  if (end_) drop_cuda_error(cudaEventDestroy(end_));
  if (begin_) drop_cuda_error(cudaEventDestroy(begin_));
  if (other_) drop_cuda_error(cudaFree(other_));
}

bool Stopwatch::can_flush() {
  if (!other_) drop_cuda_error(cudaMalloc(&other_, static_cast<std::size_t>(2 * cache_bytes_)));
  return other_ != nullptr;
}

/// Enqueued, it gives the host the time to enqueue what is timed.
void Stopwatch::flush() {
  FUSEGRAD_CUDA(cudaMemsetAsync(other_, 0, static_cast<std::size_t>(2 * cache_bytes_), stream_.get()));
}

double Stopwatch::time(const std::function<void()>& call) {
  FUSEGRAD_CUDA(cudaEventRecord(begin_, stream_.get()));
  call();
  FUSEGRAD_CUDA(cudaEventRecord(end_, stream_.get()));
  FUSEGRAD_CUDA(cudaEventSynchronize(end_));
  float milliseconds = 0;
  FUSEGRAD_CUDA(cudaEventElapsedTime(&milliseconds, begin_, end_));
  return 1000.0 * static_cast<double>(milliseconds);
}

std::vector<double> Stopwatch::compare(std::span<const std::function<void()>> calls, double budget_us, bool cold) {
  struct Entry {
    std::unique_ptr<Lap> lap;
    std::function<void()> run;
    int copies = 1;
    std::vector<double> times = {};
  };
  if (cold) cold = can_flush();
  std::vector<Entry> entries;
  double spent = 0;
  for (const std::function<void()>& call : calls) {
    Entry entry;
    const double eager = time(call);
    if (!cold && eager < kShort) {
      entry.copies = kCopies;
      entry.lap = std::make_unique<Lap>(stream_, call, kCopies);
      entry.run = [lap = entry.lap.get()] { lap->run(); };
      time(entry.run);  // the first launch of a graph uploads it
    } else {
      entry.run = call;
    }
    entries.push_back(std::move(entry));
    spent += eager;
  }
  const auto look = [&](Entry& entry) {
    if (cold) flush();
    const double us = time(entry.run);
    entry.times.push_back(us / entry.copies);
    spent += us;
  };
  for (int first = 0; first < kFirstLooks && (first == 0 || spent < budget_us); ++first) {
    for (Entry& entry : entries) look(entry);
  }
  double best = std::numeric_limits<double>::infinity();
  for (const Entry& entry : entries) best = std::min(best, *std::ranges::min_element(entry.times));
  for (int round = kFirstLooks; round < kRounds && spent < budget_us; ++round) {
    for (Entry& entry : entries) {
      if (*std::ranges::min_element(entry.times) <= kHopeless * best) look(entry);
    }
  }
  std::vector<double> medians;
  for (const Entry& entry : entries) medians.push_back(median(entry.times));
  return medians;
}

}  // namespace fusegrad::detail
