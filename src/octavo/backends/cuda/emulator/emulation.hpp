// A block of CUDA threads on one thread of the host: each is a fiber, which runs until it waits for others.
//
// It is for correctness alone. What CUDA leaves open is chosen so that mistakes show: shared memory starts with noise, a copy
// that was issued asynchronously is made no sooner than it is waited for, and the order of threads follows a seed.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
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
void exchange(const void* own, int bytes, void* all);  // every lane's `own`, in their order: 32 times `bytes`
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
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }

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
  float whole = std::nearbyint(value);
  return whole >= 2147483648.0f ? 2147483647 : whole < -2147483648.0f ? -2147483647 - 1 : int(whole);
}

template <class T>
inline T shuffled(T value, int from) {
  T all[32];
  octavo_emulation::exchange(&value, sizeof(T), all);
  return all[from & 31];
}
template <class T>
inline T __shfl_xor_sync(unsigned, T value, int mask) {
  return shuffled(value, octavo_emulation::lane() ^ mask);
}
template <class T>
inline T __shfl_sync(unsigned, T value, int from) {
  return shuffled(value, from);
}
template <class T>
inline T __shfl_down_sync(unsigned, T value, int delta) {
  int lane = octavo_emulation::lane();
  return shuffled(value, lane + delta < 32 ? lane + delta : lane);
}

inline int atomicAdd(int* at, int value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
