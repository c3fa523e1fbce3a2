// Neighbouring elements as one load or store: of 4, 8 or 16 bytes, or one element alone.
#pragma once
#include "base.cuh"

namespace octavo {

template <class T>
__device__ __forceinline__ int bits_of(T value) {
  return int(value);
}
template <>
__device__ __forceinline__ int bits_of<float>(float value) {
  return __float_as_int(value);
}
template <class T>
__device__ __forceinline__ T of_bits(int bits) {
  return T(bits);
}
template <>
__device__ __forceinline__ float of_bits<float>(int bits) {
  return __int_as_float(bits);
}

template <int bytes>
struct __align__(bytes < 16 ? bytes : 16) Words {
  unsigned words[bytes / 4];
};

// N elements of 1, 2 or 4 bytes.
template <class T, int N>
struct Neighbours {
  static constexpr int size = int(sizeof(T)), bits = 8 * size;
  Words<size * N> words;

  __device__ __forceinline__ T get(int i) const {
    unsigned word = words.words[i * size / 4];
    return of_bits<T>(int(size == 4 ? word : word >> (i * bits % 32)));
  }
  // Each element once, the first of a word first.
  __device__ __forceinline__ void set(int i, T value) {
    unsigned word = unsigned(bits_of(value)), low = size == 4 ? word : word & ((1u << bits % 32) - 1u);
    int at = i * bits % 32;
    words.words[i * size / 4] = at == 0 ? low : words.words[i * size / 4] | low << at;
  }
  __device__ __forceinline__ void load(const T* from) { words = *reinterpret_cast<const Words<size * N>*>(from); }
  __device__ __forceinline__ void store(T* to) const { *reinterpret_cast<Words<size * N>*>(to) = words; }
};

template <class T>
struct Neighbours<T, 1> {
  T value;

  __device__ __forceinline__ T get(int) const { return value; }
  __device__ __forceinline__ void set(int, T element) { value = element; }
  __device__ __forceinline__ void load(const T* from) { value = *from; }
  __device__ __forceinline__ void store(T* to) const { *to = value; }
};

}  // namespace octavo
