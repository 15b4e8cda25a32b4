// The processor's vectors, by Eigen's packet primitives: one source for SSE, AVX, AVX-512, NEON and plain scalars.
// Not installed.
#pragma once

#include <Eigen/Core>

namespace fusegrad::detail {

/// A register of lanes of T (float or double), and what the kernels need to know of the registers.
template <class T>
struct PacketOf {
  using type = typename Eigen::internal::packet_traits<T>::type;
  static constexpr int kLanes = Eigen::internal::unpacket_traits<type>::size;
};

template <class T>
using Packet = typename PacketOf<T>::type;

template <class T>
inline constexpr int kLanes = PacketOf<T>::kLanes;

inline constexpr int kRegisters = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS;

}  // namespace fusegrad::detail
