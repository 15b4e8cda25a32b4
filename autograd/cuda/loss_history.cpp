#include <atomic>
#include <cstring>
#include <thread>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/cuda/device_memory.h>
#include <fusegrad/autograd/cuda/loss_history.h>

namespace fusegrad::detail {

LossHistory::LossHistory(std::int64_t kept)
    : kept_(kept), memory_(sizeof(LossWords) + static_cast<std::size_t>(kept - 1) * sizeof(double)) {
  std::memset(memory_.data(), 0, memory_.bytes());
}

LossWords* LossHistory::words() { return reinterpret_cast<LossWords*>(memory_.data()); }
const LossWords* LossHistory::words() const { return reinterpret_cast<const LossWords*>(memory_.data()); }

void LossHistory::append(CUstream_st* stream, const void* loss, Dtype dtype) {
  append_loss(stream, words(), kept_, loss, dtype);
}

double LossHistory::at(std::int64_t call, CudaBackend& backend) const {
  const volatile std::int64_t& count = words()->count;  // the GPU writes to it
  while (count <= call) {
    if (backend.own_stream().is_idle()) {
      backend.synchronize();
      require<CudaError>(count > call, "cuda: call {} of the step has left no loss", call);
    }
    std::this_thread::yield();
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  return *static_cast<const volatile double*>(&words()->losses[call % kept_]);
}

}  // namespace fusegrad::detail
