// Uploads through page-locked memory on a stream of their own. Not installed.
//
// Two points order that stream and the context's: the copies of a start() wait for the work that the context had before
// it, because their destinations come from the context's cache, where a block is free as soon as the last work on it is
// enqueued; and join() makes the context's later work wait for the copies.
#pragma once

#include <cstddef>
#include <vector>

#include <fusegrad/autograd/cuda/pinned_memory.h>
#include <fusegrad/autograd/cuda/stream.h>
#include <fusegrad/autograd/uploads.h>

namespace fusegrad::detail {

class CudaUploads final : public Uploads {
 public:
  /// For a context on the current device, with the stream `work`, which outlives this. `slots` staging blocks take
  /// turns; with two, one can be filled while the other is copied. Errors: OutOfMemoryError; CudaError.
  CudaUploads(const Stream& work, std::size_t bytes, int slots);
  ~CudaUploads() override;
  CudaUploads(const CudaUploads&) = delete;
  CudaUploads& operator=(const CudaUploads&) = delete;

  std::byte* stage() override;
  void start(std::initializer_list<Piece> pieces) override;
  void join() override;

 private:
  struct Slot {
    PinnedMemory memory;
    Event copied;
  };
  void check_not_capturing() const;
  Slot& next() { return slots_[started_ % slots_.size()]; }

  const Stream& work_;
  Stream side_;
  Event enqueued_;           // what the context had to do before a start()
  std::vector<Slot> slots_;  // never resized: an Event does not move
  std::size_t started_ = 0;  // calls of start(); number n uses slot n modulo their number
};

}  // namespace fusegrad::detail
