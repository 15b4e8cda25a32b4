// What launching functions need of their context beside the stream: scratch memory, settings, counters, cuBLASLt. No
// CUDA header is needed to include this. Not installed.
#pragma once

#include <cstddef>
#include <memory>

#include <fusegrad/autograd/context_state.h>
#include <fusegrad/autograd/execution.h>

namespace fusegrad::detail {

class CudaBackend;
class Blaslt;  // ops/cuda/blaslt.h: handle, workspace and plans; the engine only holds it

/// Device memory for the kernels that are launched while this lives. Whoever takes the block next uses it after them,
/// since all work of a context runs in the order of its stream.
class Scratch {
 public:
  Scratch(MemoryCache& memory, std::size_t bytes) : memory_(memory), block_(memory.take(bytes)) {}
  ~Scratch() { memory_.give_back(block_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// Uninitialised, aligned to 256 bytes.
  void* data() const { return block_->data; }

 private:
  MemoryCache& memory_;
  Storage* block_;
};

/// The GPU side of a context. Everything that takes time or memory to set up is set up by the constructor.
class CudaState {
 public:
  /// `context` owns this and has a CudaBackend. Errors: CudaError; DeviceError for an unfit cuBLASLt.
  explicit CudaState(ContextState& context);

  int device() const;
  CUstream_st* stream() const;
  MemoryCache& memory() { return context_.memory(); }
  /// At least `bytes` of scratch memory. Errors: OutOfMemoryError.
  Scratch scratch(std::size_t bytes) { return Scratch(memory(), bytes); }

  Blaslt& blaslt() { return *blaslt_; }
  Counters& counters() { return context_.counters(); }
  const ContextSettings& settings() const { return context_.settings(); }

 private:
  ContextState& context_;
  CudaBackend& backend_;
  std::shared_ptr<Blaslt> blaslt_;
};

/// The state of a context on GPU `device`, on `stream` or, if that is null, a stream of its own.
/// Errors: DeviceError if there is no such GPU or this build cannot use it; CudaError.
std::shared_ptr<ContextState> make_cuda_context(const ContextSettings& settings, int device, CUstream_st* stream);

/// Defined in ops/cuda/blaslt.cpp. `backend` outlives the result. Errors: CudaError; DeviceError.
std::shared_ptr<Blaslt> make_blaslt(CudaBackend& backend, const ContextSettings& settings);

}  // namespace fusegrad::detail
