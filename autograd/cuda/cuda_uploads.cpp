#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/cuda/check.h>
#include <fusegrad/autograd/cuda/cuda_uploads.h>

namespace fusegrad::detail {

CudaUploads::CudaUploads(const Stream& work, std::size_t bytes, int slots)
    : work_(work), slots_(static_cast<std::size_t>(slots)) {
  for (Slot& slot : slots_) slot.memory = PinnedMemory(bytes);
}

CudaUploads::~CudaUploads() {
  // The copies read memory that is about to go, and write to memory that the caller may give back next.
  drop_cuda_error(cudaStreamSynchronize(side_.get()));
}

std::byte* CudaUploads::stage() {
  check_not_capturing();
  next().copied.synchronize();
  return next().memory.data();
}

void CudaUploads::start(std::initializer_list<Piece> pieces) {
  Slot& slot = next();
  try {
    enqueued_.record(work_.get());
    enqueued_.make_wait(side_.get());
    for (const Piece& piece : pieces) {
      if (piece.bytes == 0) continue;
      FUSEGRAD_CUDA(cudaMemcpyAsync(piece.to, slot.memory.data() + piece.offset, piece.bytes, cudaMemcpyHostToDevice,
                                    side_.get()));
    }
    slot.copied.record(side_.get());
  } catch (...) {
    drop_cuda_error(cudaStreamSynchronize(side_.get()));
    throw;
  }
  ++started_;
}

void CudaUploads::join() {
  check_not_capturing();
  if (started_ == 0) return;
  slots_[(started_ - 1) % slots_.size()].copied.make_wait(work_.get());
}

void CudaUploads::check_not_capturing() const {
  require<StateError>(!work_.capturing(), "context: a copy from the host was asked for while a graph is captured");
}

}  // namespace fusegrad::detail
