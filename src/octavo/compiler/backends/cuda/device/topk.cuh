// The greatest or least of rows of bytes, or their places, in order; of equal ones the first comes first: numerics.top_k_indices.
#pragma once
#include "row_joins.cuh"

namespace octavo {

// Where a byte stands in the order that is asked for, 0 first.
template <class P>
__device__ __forceinline__ int order_of(typename P::X q) {
  int byte = int(q) + (is_signed<typename P::X>::value ? 128 : 0);
  return P::largest ? 255 - byte : byte;
}

template <class P>
__device__ __forceinline__ typename P::Y given(const typename P::X* row, int place) {
  return P::gives_places ? typename P::Y(place) : typename P::Y(row[place]);
}

// x: [rows, columns], y: [rows, count]. Each turn finds the first of what comes behind the one found last: order, then place.
template <class P>
__device__ __forceinline__ void topk(const typename P::X* x, typename P::Y* y) {
  constexpr int T = P::threads_of_row;
  constexpr long long behind_all = 256LL << 32;
  int lane = threadIdx.x % T, line = threadIdx.x / T;
  long long row = (long long)blockIdx.x * P::rows_of_block + line;
  bool is_row = row < P::rows;
  const typename P::X* from = x + (is_row ? row : 0) * P::columns;
  long long* shared = reinterpret_cast<long long*>(shared_memory()) + line * T;
  long long last = -1;
#pragma unroll 1
  for (int turn = 0; turn < P::count; turn++) {
    long long best = behind_all;
    for (int i = lane; i < P::columns; i += T) {
      long long key = (long long)order_of<P>(from[i]) << 32 | i;
      if (key > last && key < best) best = key;
    }
    last = joined<T>(best, shared, lane, Least());
    if (lane == 0 && is_row) y[row * P::count + turn] = given<P>(from, int(last & 0xffffffff));
  }
}

// The same by a warp for each row: each lane counts the bytes of its own part of the row, so that all counters before one, in the
// order of bytes and of parts, add up to the first place of its elements.
template <class P>
__device__ __forceinline__ void topk_counted(const typename P::X* x, typename P::Y* y) {
  constexpr int lanes = 32, pitch = lanes + 1, part = (P::columns + lanes - 1) / lanes, own = 256 / lanes;
  int lane = threadIdx.x;
  int* counters = reinterpret_cast<int*>(shared_memory());
  const typename P::X* from = x + (long long)blockIdx.x * P::columns;
  typename P::Y* to = y + (long long)blockIdx.x * P::count;
  int first = minimum(lane * part, P::columns), last = minimum(first + part, P::columns);
  for (int i = 0; i < 256; i++) counters[i * pitch + lane] = 0;
  for (int i = first; i < last; i++) counters[order_of<P>(from[i]) * pitch + lane]++;
  __syncthreads();
  // Bytes lane * own to lane * own + own - 1: how many there are, and how many come before them.
  int total = 0;
  for (int i = 0; i < own; i++)
    for (int j = 0; j < lanes; j++) total += counters[(lane * own + i) * pitch + j];
  int before = 0;
#pragma unroll
  for (int other = 0; other < lanes; other++) {
    int theirs = __shfl_sync(0xffffffffu, total, other);
    before += other < lane ? theirs : 0;
  }
  for (int i = 0; i < own; i++)
    for (int j = 0; j < lanes; j++) {
      int& counter = counters[(lane * own + i) * pitch + j];
      int found = counter;
      counter = before;
      before += found;
    }
  __syncthreads();
  for (int i = first; i < last; i++) {
    int place = counters[order_of<P>(from[i]) * pitch + lane]++;
    if (place < P::count) to[place] = given<P>(from, i);
  }
}

}  // namespace octavo
