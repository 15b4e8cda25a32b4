#include <memory>
#include <string>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/autograd/cuda/graph.h>

namespace fusegrad::detail {
namespace {

using CapturedGraph =
    std::unique_ptr<CUgraph_st, decltype([](cudaGraph_t graph) { drop_cuda_error(cudaGraphDestroy(graph)); })>;

/// A capture that is going on; the backend's work goes to it.
class Capture {
 public:
  Capture(CudaBackend& backend, const Stream& stream) : backend_(backend), stream_(stream) {
    FUSEGRAD_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    backend_.switch_to(&stream);
  }
  ~Capture() {
    backend_.switch_to(nullptr);
    if (open_) static_cast<void>(end());
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// Success with a graph, or why there is none.
  cudaError_t end() {
    open_ = false;
    cudaGraph_t graph = nullptr;
    const cudaError_t status = cudaStreamEndCapture(stream_.get(), &graph);
    graph_.reset(graph);
    drop_cuda_error(status);
    return status;
  }
  CapturedGraph take() { return std::move(graph_); }

 private:
  CudaBackend& backend_;
  const Stream& stream_;
  bool open_ = true;
  CapturedGraph graph_;
};

[[noreturn]] void throw_invalidated(cudaError_t status, const char* noticed) {
  std::string message = detail::format(
      "step: the capture was invalidated inside the step function, by a call of the CUDA runtime that cannot be "
      "captured ({})",
      cudaGetErrorName(status));
  if (noticed) message += detail::format("; it was noticed here: {}", noticed);
  throw StateError(message);
}

}  // namespace

std::unique_ptr<Graph> Graph::capture(CudaState& state, const std::function<void()>& function) {
  Capture capture(state.backend(), state.step_streams().capture());
  try {
    function();
  } catch (const CudaError& error) {
    const cudaError_t status = capture.end();
    if (status == cudaErrorStreamCaptureInvalidated) throw_invalidated(status, error.what());
    throw;
  }
  const cudaError_t status = capture.end();
  if (status != cudaSuccess) throw_invalidated(status, nullptr);
  const CapturedGraph graph = capture.take();
  std::size_t nodes = 0;
  FUSEGRAD_CUDA(cudaGraphGetNodes(graph.get(), nullptr, &nodes));
  cudaGraphExec_t executable = nullptr;
  // Nodes keep the priorities of the streams that they were captured from.
  FUSEGRAD_CUDA(cudaGraphInstantiate(&executable, graph.get(), cudaGraphInstantiateFlagUseNodePriority));
  std::unique_ptr<Graph> made(new Graph(executable, static_cast<std::int64_t>(nodes)));
  FUSEGRAD_CUDA(cudaGraphUpload(executable, state.backend().own_stream().get()));
  return made;
}

Graph::~Graph() { drop_cuda_error(cudaGraphExecDestroy(executable_)); }

void Graph::launch(const Stream& stream) const { FUSEGRAD_CUDA(cudaGraphLaunch(executable_, stream.get())); }

}  // namespace fusegrad::detail
