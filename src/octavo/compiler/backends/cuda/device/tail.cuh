// What a product's kernel computes behind its own integers: a table, a function of them and of another tensor's, a table.
#pragma once
#include "pair.cuh"

namespace octavo {

template <class P>
struct TailPair : P::Pair {
  using Y = typename P::Y;
};

// Tables lie one behind the other, 256 bytes each: the entry of an integer is at the place of its own byte.
template <class P>
struct Tail {
  using T = typename P::Tail;
  static constexpr bool reads = T::has_pair;
  const unsigned char* tables;

  __device__ __forceinline__ int of(int q, int beside) const {
    if constexpr (T::has_first) {
      unsigned char entry = tables[q & 255];
      q = T::first_is_signed ? int(int8(entry)) : int(entry);
    }
    if constexpr (T::has_pair) {
      Pair<TailPair<P>> function{nullptr};
      q = T::is_first_operand ? function.of(q, beside) : function.of(beside, q);
    }
    if constexpr (T::has_last) q = tables[(T::has_first ? 256 : 0) + (q & 255)];
    return q;
  }
};

// Elements of the tensor that a tail reads beside a run of results, which lies at a multiple of their size; nothing without one.
template <class T, int count, bool in_words = sizeof(T) * count % 4 == 0>
struct BesideRun : Neighbours<T, count> {};

template <class T, int count>
struct BesideRun<T, count, false> {
  Vector<T, count> read;

  __device__ __forceinline__ T get(int i) const { return read.values[i]; }
  __device__ __forceinline__ void load(const T* from) { read = *reinterpret_cast<const Vector<T, count>*>(from); }
};

}  // namespace octavo
