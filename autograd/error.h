// The errors that fusegrad throws: few kinds, one base, one sentence each.
//
// A message names the op, what was expected and what came instead, for example
//   linear: w must be [out, 784] (784 = last axis of x), got [10, 512]
// Public functions check their arguments before they change anything, so after an error every object is as it was.
#pragma once

#include <stdexcept>
#include <string>

namespace fusegrad {

/// Base of every exception that fusegrad throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A shape that does not fit the operation.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// A dtype that does not fit the operation.
class DtypeError : public Error {
 public:
  using Error::Error;
};

/// A device that is absent, or operands that live on different contexts.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// A value outside its range: an option, a label, an environment variable.
class ValueError : public Error {
 public:
  using Error::Error;
};

/// The right call at the wrong time: a stale Var, a second backward, a parameter changed since forward.
class StateError : public Error {
 public:
  using Error::Error;
};

/// A file that cannot be read or written, or whose content is not what its format demands.
class IoError : public Error {
 public:
  using Error::Error;
};

/// A failed call of the CUDA runtime or of a CUDA library, with the call, its status and its place.
class CudaError : public Error {
 public:
  using Error::Error;
};

/// Host or device memory is exhausted. The message says what was asked for and what is held; the context stays usable.
class OutOfMemoryError : public Error {
 public:
  using Error::Error;
};

}  // namespace fusegrad
