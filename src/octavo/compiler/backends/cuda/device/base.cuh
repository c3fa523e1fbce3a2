// What all kernels stand on: types, the emulator's stand-ins, and integer arithmetic that rounds as the oracles do.
#pragma once

#ifdef OCTAVO_EMULATED
#include "emulation.hpp"
#endif

namespace octavo {

using int8 = signed char;
using uint8 = unsigned char;

template <class T>
struct is_signed {
  static constexpr bool value = T(-1) < T(0);
};

__device__ __forceinline__ int minimum(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int maximum(int a, int b) { return a > b ? a : b; }
__device__ __forceinline__ int clamped(int value, int low, int high) { return minimum(maximum(value, low), high); }

// clamp(rint(float32(acc) * multiplier) + zero_point): numerics.requantize. The product is rounded on its own, never fused; a
// conversion saturates, so that clamping before the zero point is added keeps every sum in int32.
__device__ __forceinline__ int rounded(float real, int zero_point, int low, int high) {
  return clamped(__float2int_rn(real), low - zero_point, high - zero_point) + zero_point;
}

// An A100 converts between integers and floats at a quarter of the rate at which it adds. The last place of 1.5 * 2**23 is that of
// ones, so that adding it rounds half to even, and the sum's bits count on from its own.
constexpr float magic = 12582912.0f;
constexpr int magic_bits = 0x4b400000;

// An integer below 2**22 in size as a float.
__device__ __forceinline__ float small_float(int value) { return __fsub_rn(__int_as_float(magic_bits + value), magic); }

// `rounded` of a number that is no NaN, by bounds below 2**22 in size.
__device__ __forceinline__ int rounded_number(float real, int zero_point, int low, int high) {
  float bounded = fminf(fmaxf(real, float(low - zero_point)), float(high - zero_point));
  return __float_as_int(__fadd_rn(bounded, magic)) + (zero_point - magic_bits);
}

// The same with ties that make the sum with the zero point even: clamp(rint(real + zero_point)).
__device__ __forceinline__ int rounded_stored(float real, int zero_point, int low, int high) {
  float bounded = fminf(fmaxf(real, float(low - zero_point)), float(high - zero_point));
  int whole = __float2int_rn(bounded);
  float rest = __fsub_rn(bounded, float(whole));  // exact
  bool is_odd_tie = (rest == 0.5f || rest == -0.5f) && ((whole + zero_point) & 1);
  return whole + (is_odd_tie ? (rest > 0.0f ? 1 : -1) : 0) + zero_point;
}

__device__ __forceinline__ int requantized(int acc, float multiplier, int zero_point, int low, int high) {
  return rounded(__fmul_rn(__int2float_rn(acc), multiplier), zero_point, low, high);
}

// Four integers of 8 bits as one register, the first in its lowest byte: their order in memory.
__device__ __forceinline__ constexpr int packed(int a, int b, int c, int d) {
  return int((a & 255u) | (b & 255u) << 8 | (c & 255u) << 16 | (unsigned)d << 24);
}

// Elements that one load or store moves: at an address that is a multiple of their size.
template <class T, int count>
struct alignas(sizeof(T) * count) Vector {
  T values[count];
};

// Reads bytes of global memory, 4, 8 or 16 at a multiple of that, into registers.
template <int bytes>
__device__ __forceinline__ void load_words(int* to, const void* from) {
  auto read = *reinterpret_cast<const Vector<int, bytes / 4>*>(from);
#pragma unroll
  for (int i = 0; i < bytes / 4; i++) to[i] = read.values[i];
}

// The block's dynamic shared memory, the only one that kernels use.
__device__ __forceinline__ unsigned char* shared_memory() {
#ifdef OCTAVO_EMULATED
  return octavo_emulation::shared_memory();
#else
  extern __shared__ __align__(1024) unsigned char octavo_shared_memory[];
  return octavo_shared_memory;
#endif
}

}  // namespace octavo
