#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/cuda/cuda_state.h>
#include <fusegrad/autograd/cuda/device.h>
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/autograd/cuda/fault.h>
#include <fusegrad/autograd/cuda/graph.h>
#include <fusegrad/autograd/cuda/stopwatch.h>

namespace fusegrad::detail {
namespace {

/// The block of KernelWords.
struct Words {
  DeviceFault fault;
  unsigned tickets[Branches::kLines][KernelWords::kTickets] = {};
  unsigned result = 0;
};

}  // namespace

KernelWords::KernelWords(CudaBackend& backend) : backend_(backend), block_(backend.allocate(sizeof(Words))) {
  require<OutOfMemoryError>(block_ != nullptr, "out of memory on {}: {} bytes were asked for, as counters of kernels",
                            backend.device().to_string(), sizeof(Words));
  const Words initial;
  backend.copy_from_host(block_, &initial, sizeof initial);
  backend.watch(fault());
}

KernelWords::~KernelWords() {
  backend_.watch(nullptr);
  backend_.release(block_);
}

unsigned* KernelWords::tickets(int line) const { return static_cast<Words*>(block_)->tickets[line]; }
unsigned* KernelWords::result() const { return &static_cast<Words*>(block_)->result; }
DeviceFault* KernelWords::fault() const { return &static_cast<Words*>(block_)->fault; }

CudaState::CudaState(ContextState& context)
    : context_(context), backend_(static_cast<CudaBackend&>(context.backend())), words_(backend_) {
  const DeviceScope scope(device());
  blaslt_ = make_blaslt(backend_, context.settings());
  plan_table_ = make_plan_table(backend_, *blaslt_, context.settings());
  ways_ = make_linear_ways();
  load_plan_cache(*this);
}

CudaState::~CudaState() { save_plan_cache(*this); }

int CudaState::device() const { return backend_.device().index; }

CUstream_st* CudaState::stream() { return backend_.work_stream(); }

int CudaState::line() const { return context_.branches() ? context_.branches()->line() : 0; }

StepStreams& CudaState::step_streams() {
  if (!step_streams_) step_streams_ = std::make_shared<StepStreams>(backend_);
  return *step_streams_;
}

Stopwatch& CudaState::stopwatch() {
  if (!stopwatch_) stopwatch_ = std::make_unique<Stopwatch>();
  return *stopwatch_;
}

bool CudaState::capturing() const { return backend_.stream().capturing(); }

Aside::Aside(CudaState& state) : memory_(state.memory()) {
  state.backend().own_stream().synchronize();
  if (state.stepping()) state.step_streams().branches().synchronize();
  memory_.suspend_arena();
}

Aside::~Aside() { memory_.resume_arena(); }

std::shared_ptr<ContextState> make_cuda_context(const ContextSettings& settings, int device, CUstream_st* stream) {
  auto context = std::make_shared<ContextState>(std::make_unique<CudaBackend>(device, stream), settings);
  context->attach(std::make_shared<CudaState>(*context));
  return context;
}

}  // namespace fusegrad::detail
