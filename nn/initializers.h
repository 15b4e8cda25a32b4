// Initial values of parameters: drawn on the host from counter-based random numbers with IEEE arithmetic alone, so
// equal seeds give equal bits on every machine and device.
//
// Sources: He et al., "Delving Deep into Rectifiers" (2015); Glorot and Bengio, "Understanding the difficulty of
// training deep feedforward neural networks" (2010), whose rule carries its author's first name, Xavier.
#pragma once

#include <cstdint>

#include <fusegrad/autograd/parameter.h>

namespace fusegrad {

/// How the weights of a layer with `in` inputs and `out` outputs are drawn.
enum class Initialization : std::uint8_t {
  he_uniform,      ///< uniform in ±sqrt(6 / in): keeps the variance through relu
  he_normal,       ///< normal with deviation sqrt(2 / in)
  xavier_uniform,  ///< uniform in ±sqrt(6 / (in + out)): keeps the variance through no activation
  xavier_normal,   ///< normal with deviation sqrt(2 / (in + out))
};

/// Every value is `value`.
Initializer constant(float value);

/// Uniform in [-bound, bound). Draw i is a function of (seed, stream, i) alone.
/// Errors: ValueError if `bound` is negative or not finite.
Initializer uniform(float bound, std::uint64_t seed, std::uint64_t stream);

/// Normal with mean 0 and the given standard deviation, at most 6.4 deviations from it. Draw i is a function of (seed,
/// stream, i) alone. Errors: ValueError if `deviation` is negative or not finite.
Initializer normal(float deviation, std::uint64_t seed, std::uint64_t stream);

/// The weights [out, in] of a layer. Errors: ValueError if `in` or `out` is negative.
Initializer layer_weights(Initialization kind, std::int64_t in, std::int64_t out, std::uint64_t seed,
                          std::uint64_t stream);

}  // namespace fusegrad
