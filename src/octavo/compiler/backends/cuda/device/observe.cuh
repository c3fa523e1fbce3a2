// An observer: adds the values of a float32 tensor to its statistics, as numerics/statistics/observer_state.py defines them. All of
// them are counts and extremes, so that the order of values doesn't matter. P is the structure of a kernel's parameters.
//
// A block counts in shared memory, where most values have a counter: zeros of both signs, and magnitudes whose code lies within
// `window` codes from `first_code` on. Codes beyond are counted where they stay. What a block found is added when it has read its part.
#pragma once
#include "neighbours.cuh"

namespace octavo {

constexpr int SIGN_CODE = 1 << 14, INFINITE = 0x7F800000;

// The least of a number and what lies at an address, none of them NaN: of numbers of one sign, bits of the positive ascend and those
// of the negative descend; bits of the negative are less than those of the positive with a sign, and greater without.
__device__ __forceinline__ void lower(float* at, float value) {
  int bits = __float_as_int(value);
  if (bits >= 0) {
    atomicMin(reinterpret_cast<int*>(at), bits);
  } else {
    atomicMax(reinterpret_cast<unsigned*>(at), unsigned(bits));
  }
}

// The greatest, likewise.
__device__ __forceinline__ void raise(float* at, float value) {
  int bits = __float_as_int(value);
  if (bits >= 0) {
    atomicMax(reinterpret_cast<int*>(at), bits);
  } else {
    atomicMin(reinterpret_cast<unsigned*>(at), unsigned(bits));
  }
}

// What one thread saw and has not passed on: values of one code, the range of one channel, the first value that is not finite.
template <class P>
struct Observer {
  static constexpr int counters = 2 * P::window + 2;
  int* counted;  // of the block: by code, negative ones behind, then the zeros of both signs
  float* least;  // of the block: by channel
  float* greatest;
  int* table;  // of the tensor
  int code = 0, repeats = 0, channel = 0, left = 0;
  float low = __int_as_float(INFINITE), high = -__int_as_float(INFINITE);

  __device__ __forceinline__ explicit Observer(int* table)
      : counted(reinterpret_cast<int*>(shared_memory())),
        least(reinterpret_cast<float*>(counted + counters)),
        greatest(least + P::channels),
        table(table) {}

  __device__ __forceinline__ void clear() const {
    for (int i = threadIdx.x; i < counters; i += P::threads) counted[i] = 0;
    for (int i = threadIdx.x; i < P::channels; i += P::threads) {
      least[i] = __int_as_float(INFINITE);
      greatest[i] = -__int_as_float(INFINITE);
    }
  }

  __device__ __forceinline__ void pass_count() {
    if (repeats == 0) return;
    int magnitude = code & SIGN_CODE - 1, is_negative = code / SIGN_CODE, at = magnitude - P::first_code;
    if (at >= 0 && at < P::window) {
      atomicAdd(counted + is_negative * P::window + at, repeats);
    } else if (magnitude == 0) {
      atomicAdd(counted + 2 * P::window + is_negative, repeats);
    } else {
      atomicAdd(table + code, repeats);
    }
    repeats = 0;
  }

  __device__ __forceinline__ void pass_range() {
    if (!(low <= high)) return;
    lower(least + channel, low);
    raise(greatest + channel, high);
    low = __int_as_float(INFINITE), high = -low;
  }

  __device__ __forceinline__ void add(float value, unsigned item) {
    unsigned bits = __float_as_int(value);
    int found = bits >> P::shift, of = P::channels == 1 ? 0 : item / P::inner % P::channels;
    if (found != code) {
      pass_count();
      code = found;
    }
    repeats++;
    if ((bits & 0x7FFFFFFFu) >= INFINITE) {
      left = maximum(left, int(P::items - item));
      return;
    }
    if (of != channel) {
      pass_range();
      channel = of;
    }
    low = value < low ? value : low;
    high = value > high ? value : high;
  }

  // Adds what the block found; every thread of it has passed on what it saw.
  __device__ __forceinline__ void finish(float* ranges) const {
    for (int i = threadIdx.x; i < counters; i += P::threads) {
      if (counted[i] == 0) continue;
      bool is_zero = i >= 2 * P::window, is_negative = is_zero ? i % 2 : i >= P::window;
      int magnitude = is_zero ? 0 : P::first_code + i % P::window;
      atomicAdd(table + magnitude + (is_negative ? SIGN_CODE : 0), counted[i]);
    }
    for (int i = threadIdx.x; i < P::channels; i += P::threads) {
      if (!(least[i] <= greatest[i])) continue;
      lower(ranges + i, least[i]);
      raise(ranges + P::channels + i, greatest[i]);
    }
  }
};

template <class P>
__device__ __forceinline__ void observe(const float* x, float* ranges, int* counts) {
  constexpr int N = P::elements_of_thread;
  Observer<P> seen(counts + P::first_table);
  seen.clear();
  __syncthreads();
  unsigned first = blockIdx.x * unsigned(P::elements_of_block), last = first + P::elements_of_block;
  if (last > P::items) last = P::items;
  for (unsigned item = first + threadIdx.x * N; item < last; item += P::threads * N) {
    Neighbours<float, N> read;
    read.load(x + item);
#pragma unroll
    for (int i = 0; i < N; i++) seen.add(read.get(i), item + i);
  }
  seen.pass_count();
  seen.pass_range();
  if (seen.left > 0) atomicMax(counts, seen.left);
  __syncthreads();
  seen.finish(ranges);
}

}  // namespace octavo
