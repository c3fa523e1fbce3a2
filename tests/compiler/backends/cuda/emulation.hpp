// A block of CUDA threads on one thread of the host: each is a fiber, which runs until it waits for others.
//
// It is for correctness alone. What CUDA leaves open is chosen so that mistakes show: shared memory starts with noise, a copy
// that was issued asynchronously is made no sooner than it is waited for, and the order of threads follows a seed.
#pragma once

// Of C alone: to read C++'s <cmath> and <algorithm> would take ten times as long as all that follows. TVM's kernels, which may call
// any function of theirs, include them first (cuda_emulator.py).
#include <stdint.h>
#include <string.h>

extern "C" {
float fminf(float, float) noexcept;
float fmaxf(float, float) noexcept;
float floorf(float) noexcept;
}

#define __global__
#define __device__
#define __host__
#ifdef __OPTIMIZE__
#define __forceinline__ inline __attribute__((always_inline))
#else
#define __forceinline__ inline
#endif
#define __launch_bounds__(...)
// One block runs at a time.
#define __shared__ static
#define __align__(bytes) alignas(bytes)

struct uint3 {
  unsigned x, y, z;
};

namespace octavo_emulation {

struct Copy {
  void* to;
  const void* from;
  int bytes;   // of the destination
  int source;  // of the source that are copied, the rest becomes zeros
};

// What a thread has issued asynchronously: copies in the order of their groups.
struct Copies {
  static constexpr int LIMIT = 256;
  Copy copies[LIMIT];
  int group[LIMIT];
  int count = 0;
  int groups = 0;  // closed so far
};

extern uint3 thread_index, block_index, block_size, grid_size;

unsigned char* shared_memory();
Copies& copies();
int lane();
void barrier();              // of the block
void warp_barrier();         // of the warp, and its memory
// Every lane's `own`, in their order: 32 times `bytes`, 128 at most, until the next exchange. Where the instruction is not of the
// whole warp, lanes that are gone give noise.
const void* exchange(const void* own, int bytes, bool of_whole_warp = true);
// sums += a * b, `tall` times 8 rows, 8 columns, `deep` times 16 deep. Lane l holds of each 8 x 16 part of a row l / 4 and of b
// column l / 4, four integers from 4 * (l % 4) on; of the sums row l / 4, columns 2 * (l % 4) and the next. Parts of a: rows first.
void multiply_fragments(int* sums, const int* a, const int* b, int tall, int deep, bool a_is_signed, bool b_is_signed);

struct Row {
  unsigned char bytes[32];
};
// sums += left * right of one thread of four warps, 32 deep: of two rows, and `columns` columns, each eight of which it has two of.
// Returns a number that tells the integers it read from others; without sums that alone.
unsigned multiply_rows(int* sums, const Row (&left)[2], const Row* right, int columns, bool a_is_signed, bool b_is_signed);
[[noreturn]] void fail(const char* what);

}  // namespace octavo_emulation

#define threadIdx octavo_emulation::thread_index
#define blockIdx octavo_emulation::block_index
#define blockDim octavo_emulation::block_size
#define gridDim octavo_emulation::grid_size

inline void __syncthreads() { octavo_emulation::barrier(); }
inline void __syncwarp(unsigned = ~0u) { octavo_emulation::warp_barrier(); }

inline float __int2float_rn(int value) { return float(value); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float rsqrtf(float a) { return 1.0f / __builtin_sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

inline float __int_as_float(int bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline int __float_as_int(float value) {
  int bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Half to even; saturates, and NaN is 0: cvt.rni.s32.f32.
inline int __float2int_rn(float value) {
  if (value != value) return 0;
  float whole = __builtin_nearbyintf(value);
  return whole >= 2147483648.0f ? 2147483647 : whole < -2147483648.0f ? -2147483647 - 1 : int(whole);
}

// Zeros before the highest bit that is set.
inline int __clz(int value) { return value == 0 ? 32 : __builtin_clz(unsigned(value)); }

template <class T>
inline T shuffled(T value, int from) {
  return static_cast<const T*>(octavo_emulation::exchange(&value, sizeof(T), false))[from & 31];
}
// Lanes of a part of the warp, `width` of them, exchange among themselves.
template <class T>
inline T __shfl_sync(unsigned, T value, int from, int width = 32) {
  return shuffled(value, (octavo_emulation::lane() & ~(width - 1)) + (from & (width - 1)));
}
template <class T>
inline T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  int lane = octavo_emulation::lane(), from = lane ^ mask;
  return shuffled(value, (from & ~(width - 1)) > (lane & ~(width - 1)) ? lane : from);
}
template <class T>
inline T __shfl_down_sync(unsigned, T value, int delta, int width = 32) {
  int lane = octavo_emulation::lane();
  return shuffled(value, (lane & (width - 1)) + delta < width ? lane + delta : lane);
}
template <class T>
inline T __shfl_up_sync(unsigned, T value, int delta, int width = 32) {
  int lane = octavo_emulation::lane();
  return shuffled(value, (lane & (width - 1)) - delta >= 0 ? lane - delta : lane);
}
inline unsigned __activemask() { return ~0u; }

// CUDA's vectors of elements.
#define OCTAVO_VECTORS(name, type)                                               \
  struct alignas(2 * sizeof(type)) name##2 {                                     \
    type x, y;                                                                   \
  };                                                                             \
  struct name##3 {                                                               \
    type x, y, z;                                                                \
  };                                                                             \
  struct alignas(4 * sizeof(type)) name##4 {                                     \
    type x, y, z, w;                                                             \
  };                                                                             \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }               \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }    \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
OCTAVO_VECTORS(float, float)
OCTAVO_VECTORS(int, int)
OCTAVO_VECTORS(char, signed char)
OCTAVO_VECTORS(uchar, unsigned char)
OCTAVO_VECTORS(short, short)
OCTAVO_VECTORS(ushort, unsigned short)
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
template <class T>
inline T __ldg(const T* at) {
  return *at;
}
template <class T>
inline T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
inline T min(T a, T b) {
  return b < a ? b : a;
}

inline int atomicAdd(int* at, int value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
template <class T>
inline T atomicMin(T* at, T value) {
  T before = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (value < before && !__atomic_compare_exchange_n(at, &before, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return before;
}
template <class T>
inline T atomicMax(T* at, T value) {
  T before = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (before < value && !__atomic_compare_exchange_n(at, &before, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  return before;
}
