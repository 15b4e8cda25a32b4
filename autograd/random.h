// Counter-based random numbers: a draw is a pure function of (seed, stream, index), the same on every device, in any
// order, and after a resume.
//
// Source: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011).
#pragma once

#include <array>
#include <cstdint>

namespace fusegrad {

/// Four independent 32-bit words for `counter` under `key`.
constexpr std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// A sequence of draws named by (seed, stream), for example (the user's seed, the number of a parameter).
class Random {
 public:
  constexpr Random(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  /// 32 random bits for `index`.
  constexpr std::uint32_t bits(std::uint64_t index) const {
    const std::uint64_t block = index / 4;
    return philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                   static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)},
                  {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)})[index % 4];
  }
  /// Uniform in [0, 1), a multiple of 2^-24: exact in float.
  constexpr float uniform(std::uint64_t index) const { return static_cast<float>(bits(index) >> 8) * 0x1p-24f; }
  /// Uniform integer in [0, bound), bound >= 1; biased by at most bound / 2^32.
  constexpr std::uint32_t below(std::uint64_t index, std::uint32_t bound) const {
    return static_cast<std::uint32_t>((std::uint64_t{bits(index)} * bound) >> 32);
  }

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
};

}  // namespace fusegrad
