// Copies from host memory to a context's tensors that run beside its other work: while one batch is computed with, the
// next one is on its way.
//
//   std::byte* staged = uploads->stage();                           // write the next batch there
//   uploads->start({{.to = x.mutable_raw(), .offset = 0, .bytes = bytes}});
//   ...                                                             // give the context work that does not need x
//   uploads->join();                                                // from here on x may be used as any tensor
//
// On a GPU the staging memory is page-locked and the copies have a stream of their own. A backend without such a thing
// copies in start(). Not installed.
#pragma once

#include <cstddef>
#include <initializer_list>

namespace fusegrad::detail {

/// Made by Backend::uploads(). Allocates nothing after that.
class Uploads {
 public:
  /// Bytes [offset, offset + bytes) of the staging memory go to address `to` of the device.
  struct Piece {
    void* to;
    std::size_t offset;
    std::size_t bytes;
  };

  /// Waits for copies that are not done.
  virtual ~Uploads() = default;

  /// Host memory for the content of the next start(), uninitialised, aligned to an element of any dtype. Waits while an
  /// earlier copy still reads it. Errors: StateError while the context's stream is being captured; CudaError.
  virtual std::byte* stage() = 0;
  /// Starts copies out of what stage() returned last. They come after the work that the context was given before, so
  /// that a destination may be a block that this work still uses. Until join() nobody else may use it, or give it back
  /// to the context. Errors: CudaError; then no copy is under way.
  virtual void start(std::initializer_list<Piece> pieces) = 0;
  /// Work that the context is given from now on comes after all copies so far. The host does not wait.
  /// Errors: as stage().
  virtual void join() = 0;
};

}  // namespace fusegrad::detail
