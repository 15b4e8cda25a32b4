// What the engine needs of a device: raw memory, copies, fills, conversions and a wait. One implementation a backend.
// Not installed.
//
// Everything but allocate and release is work in the order of the context's stream; host memory may be reused or read
// as soon as a copy returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/dtype.h>

namespace fusegrad::detail {

class Branches;  // branches.h
class Uploads;   // uploads.h

/// Raw memory of one device. Blocks are aligned to 256 bytes.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual Device device() const = 0;
  /// Null if the device has no such block left.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* block) = 0;
  virtual void copy_from_host(void* device, const void* host, std::size_t bytes) = 0;
  virtual void copy_to_host(void* host, const void* device, std::size_t bytes) = 0;
  /// The two ranges may overlap.
  virtual void copy_within(void* to, const void* from, std::size_t bytes) = 0;
  /// Writes `count` copies of an element of 1, 2, 4 or 8 bytes.
  virtual void fill(void* block, const void* element, std::size_t element_bytes, std::size_t count) = 0;
  /// Writes `count` elements, each rounded once to `to_dtype`, which is floating-point. The ranges do not overlap.
  virtual void convert(void* to, Dtype to_dtype, const void* from, Dtype from_dtype, std::size_t count) = 0;
  virtual void synchronize() = 0;
  /// Where there are branches, work on the main line is announced to them; null: there are none.
  virtual void set_branches(Branches* /*branches*/) {}
  /// Copies from `slots` staging blocks of `bytes` each, which run beside other work where the device can do that; this
  /// one's do not. The backend outlives them. Errors: OutOfMemoryError; CudaError.
  virtual std::unique_ptr<Uploads> uploads(std::size_t bytes, int slots);
};

}  // namespace fusegrad::detail
