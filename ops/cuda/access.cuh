// How kernels read and write elements: conversion to the type they compute in, and two ways to reach memory. Not
// installed.
//
// A kernel is written once, over an access:
//
//   Vectors<T>         operands of one dtype, known when compiling; 16 bytes at a time. Every address, leading
//   dimension
//                      and row length is a multiple of 16 bytes.
//   Mixed              operands of f32, bf16 and f16, looked up at run time; four elements at a time, 16 or 8 bytes.
//   Scalars<Compute>   operands of any dtype, looked up at run time; one element at a time, any alignment.
//
// Loads give a Raw value, which is unpacked later, so that a kernel can have several in flight.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <fusegrad/autograd/dtype.h>
#include <fusegrad/ops/views.h>

namespace fusegrad::kernels {

/// The type in which elements of T are computed with.
template <class T>
using ComputeOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// `value` as another floating-point type, rounded once to nearest even.
template <class To, class From>
__device__ To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<From, bf16>) {
    return static_cast<To>(__uint_as_float(static_cast<unsigned>(value.bits) << 16));
  } else if constexpr (std::is_same_v<From, f16>) {
    return static_cast<To>(__half2float(__ushort_as_half(value.bits)));
  } else if constexpr (std::is_same_v<To, bf16> && std::is_same_v<From, float>) {
    return bf16::from_bits(__bfloat16_as_ushort(__float2bfloat16_rn(value)));
  } else if constexpr (std::is_same_v<To, bf16>) {
    return bf16::from_bits(__bfloat16_as_ushort(__double2bfloat16(value)));
  } else if constexpr (std::is_same_v<To, f16> && std::is_same_v<From, float>) {
    return f16::from_bits(__half_as_ushort(__float2half_rn(value)));
  } else if constexpr (std::is_same_v<To, f16>) {
    return f16::from_bits(__half_as_ushort(__double2half(value)));
  } else {
    return static_cast<To>(value);
  }
}

template <class T, int N = 16 / sizeof(T)>
class Vectors {
 public:
  using Compute = ComputeOf<T>;
  static constexpr int kWidth = N;
  struct Raw {
    uint4 quads[N * sizeof(T) / 16];
  };

  /// kWidth elements from (row, column) on, or from `index` on.
  static __device__ Raw load(const ConstMatrix& from, std::int64_t row, std::int64_t column) {
    return load(static_cast<const T*>(from.data) + (row * from.ld + column));
  }
  static __device__ Raw load(const ConstVector& from, std::int64_t index) {
    return load(static_cast<const T*>(from.data) + index);
  }
  static __device__ void store(const Matrix& to, std::int64_t row, std::int64_t column, const Compute (&values)[N]) {
    store(static_cast<T*>(to.data) + (row * to.ld + column), values);
  }
  static __device__ void store(const Vector& to, std::int64_t index, const Compute (&values)[N]) {
    store(static_cast<T*>(to.data) + index, values);
  }

  template <class To>
  static __device__ void unpack(const Raw& raw, Dtype /*dtype*/, To (&values)[N]) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const unsigned words[4] = {raw.quads[q].x, raw.quads[q].y, raw.quads[q].z, raw.quads[q].w};
#pragma unroll
      for (int i = 0; i < kPerQuad; ++i) values[q * kPerQuad + i] = convert<To>(element(words, i));
    }
  }

 private:
  static constexpr int kQuads = N * sizeof(T) / 16;
  static constexpr int kPerQuad = 16 / sizeof(T);

  static __device__ Raw load(const T* from) {
    Raw raw;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) raw.quads[q] = reinterpret_cast<const uint4*>(from)[q];
    return raw;
  }
  static __device__ void store(T* to, const Compute (&values)[N]) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      unsigned words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = pack_word(values + q * kPerQuad, i);
      reinterpret_cast<uint4*>(to)[q] = {words[0], words[1], words[2], words[3]};
    }
  }

  static __device__ T element(const unsigned (&words)[4], int i) {
    if constexpr (sizeof(T) == 8) {
      return __hiloint2double(static_cast<int>(words[2 * i + 1]), static_cast<int>(words[2 * i]));
    } else if constexpr (sizeof(T) == 4) {
      return __uint_as_float(words[i]);
    } else {
      return T::from_bits(static_cast<std::uint16_t>(i % 2 == 0 ? words[i / 2] : words[i / 2] >> 16));
    }
  }
  /// Word i of 16 bytes of elements.
  static __device__ unsigned pack_word(const Compute* values, int i) {
    if constexpr (sizeof(T) == 8) {
      return static_cast<unsigned>(i % 2 == 0 ? __double2loint(values[i / 2]) : __double2hiint(values[i / 2]));
    } else if constexpr (sizeof(T) == 4) {
      return __float_as_uint(values[i]);
    } else if constexpr (std::is_same_v<T, bf16>) {  // one conversion instruction for two elements
      const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
      return join(__bfloat16_as_ushort(pair.x), __bfloat16_as_ushort(pair.y));
    } else {
      const __half2 pair = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
      return join(__half_as_ushort(pair.x), __half_as_ushort(pair.y));
    }
  }
  static __device__ unsigned join(unsigned short low, unsigned short high) {
    return static_cast<unsigned>(low) | static_cast<unsigned>(high) << 16;
  }
};

class Mixed {
 public:
  using Compute = float;
  static constexpr int kWidth = 4;
  struct Raw {
    uint4 word;  // 16-bit elements are in x and y
  };

  static __device__ Raw load(const ConstVector& from, std::int64_t index) {
    if (from.dtype == Dtype::f32) return {reinterpret_cast<const uint4*>(from.data)[index / kWidth]};
    const uint2 pairs = reinterpret_cast<const uint2*>(from.data)[index / kWidth];
    return {{pairs.x, pairs.y, 0, 0}};
  }
  template <class To>
  static __device__ void unpack(const Raw& raw, Dtype dtype, To (&values)[kWidth]) {
    const unsigned words[4] = {raw.word.x, raw.word.y, raw.word.z, raw.word.w};
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const auto half = static_cast<std::uint16_t>(i % 2 == 0 ? words[i / 2] : words[i / 2] >> 16);
      values[i] = static_cast<To>(dtype == Dtype::f32    ? __uint_as_float(words[i])
                                  : dtype == Dtype::bf16 ? convert<float>(bf16::from_bits(half))
                                                         : convert<float>(f16::from_bits(half)));
    }
  }
  static __device__ void store(const Vector& to, std::int64_t index, const float (&values)[kWidth]) {
    if (to.dtype == Dtype::f32) {
      store_as<float>(to, index, values);
    } else if (to.dtype == Dtype::bf16) {
      store_as<bf16>(to, index, values);
    } else {
      store_as<f16>(to, index, values);
    }
  }

 private:
  template <class T>
  static __device__ void store_as(const Vector& to, std::int64_t index, const float (&values)[kWidth]) {
    struct alignas(kWidth * sizeof(T)) Packet {
      T elements[kWidth];
    };
    Packet packet;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) packet.elements[i] = convert<T>(values[i]);
    static_cast<Packet*>(to.data)[index / kWidth] = packet;
  }
};

template <class ComputeType>
class Scalars {
 public:
  using Compute = ComputeType;
  static constexpr int kWidth = 1;
  struct Raw {
    Compute value;
  };

  static __device__ Raw load(const ConstMatrix& from, std::int64_t row, std::int64_t column) {
    return load(ConstVector{from.data, 0, from.dtype}, row * from.ld + column);
  }
  static __device__ Raw load(const ConstVector& from, std::int64_t index) {
    Raw raw;
    visit(from.dtype, [&]<class T>() { raw.value = convert<Compute>(static_cast<const T*>(from.data)[index]); });
    return raw;
  }
  static __device__ void store(const Matrix& to, std::int64_t row, std::int64_t column, const Compute (&values)[1]) {
    store(Vector{to.data, 0, to.dtype}, row * to.ld + column, values);
  }
  static __device__ void store(const Vector& to, std::int64_t index, const Compute (&values)[1]) {
    visit(to.dtype, [&]<class T>() { static_cast<T*>(to.data)[index] = convert<T>(values[0]); });
  }

  template <class To>
  static __device__ void unpack(const Raw& raw, Dtype /*dtype*/, To (&values)[1]) {
    values[0] = static_cast<To>(raw.value);
  }

 private:
  template <class F>
  static __device__ void visit(Dtype dtype, F&& f) {
    switch (dtype) {
      case Dtype::f64: return f.template operator()<double>();
      case Dtype::bf16: return f.template operator()<bf16>();
      case Dtype::f16: return f.template operator()<f16>();
      default: return f.template operator()<float>();
    }
  }
};

/// Element `index` of a vector of any dtype.
template <class Compute>
__device__ Compute load_one(const ConstVector& from, std::int64_t index) {
  return Scalars<Compute>::load(from, index).value;
}
template <class Compute>
__device__ void store_one(const Vector& to, std::int64_t index, Compute value) {
  const Compute values[1] = {value};
  Scalars<Compute>::store(to, index, values);
}

/// True if `data` is 16-byte aligned; true for none.
inline bool aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }
/// True if every row of a matrix is aligned and consists of packets of `width` elements; true for none.
inline bool aligned(const ConstMatrix& matrix, int width) {
  return !matrix.data ||
         (aligned(matrix.data) && matrix.cols % width == 0 && (matrix.ld % width == 0 || matrix.rows < 2));
}

/// As above, with packets of 16 bytes.
inline bool aligned_rows(const ConstMatrix& matrix) {
  return aligned(matrix, 16 / static_cast<int>(size_of(matrix.dtype)));
}

}  // namespace fusegrad::kernels
