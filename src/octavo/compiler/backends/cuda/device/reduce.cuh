// Reductions of integers along the middle of three axes: [outer, extent, inner]. A block takes `columns` groups of neighbouring
// results, and as many slices of the extent as it has threads for each.
#pragma once
#include "average.cuh"
#include "change.cuh"
#include "row_joins.cuh"

namespace octavo {

// Numbers as `kernels/reduce.py` writes them. The last two find where the first of the greatest, or of the least, is.
enum Reduction { SUM = 0, GREATEST = 1, LEAST = 2, FIRST_GREATEST = 3, FIRST_LEAST = 4 };

constexpr int places = 1 << 23;  // which a byte leaves room for in an int

template <class P>
constexpr bool finds_place = P::reduction == FIRST_GREATEST || P::reduction == FIRST_LEAST;

template <class P>
__device__ __forceinline__ int reduced(int a, int b) {
  return P::reduction == SUM ? a + b : P::reduction == LEAST ? minimum(a, b) : maximum(a, b);
}

// What an element at a place counts as: itself; or its order among all bytes, then its place, of which the first is the greatest.
template <class P>
__device__ __forceinline__ int term(typename P::X q, int place) {
  if constexpr (finds_place<P>) {
    static_assert(P::extent <= places);
    int order = int(q) + (is_signed<typename P::X>::value ? 128 : 0);
    return (P::reduction == FIRST_GREATEST ? order : 255 - order) * places + (places - 1 - place);
  }
  return int(q);
}

template <class P>
__device__ __forceinline__ void reduce(const typename P::X* x, const typename P::Y* table, typename P::Y* y) {
  using X = typename P::X;
  constexpr int N = P::results_of_thread, slices = P::threads / P::columns;
  constexpr int least = is_signed<X>::value ? -128 : 0;
  constexpr int neutral = P::reduction == GREATEST ? least : P::reduction == LEAST ? least + 255 : 0;
  int* shared = reinterpret_cast<int*>(shared_memory());
  int column = threadIdx.x % P::columns, slice = threadIdx.x / P::columns;
  long long group = (long long)blockIdx.x * P::columns + column;
  bool is_result = group * N < P::outer * P::inner;
  long long result_at = is_result ? group * N : 0;
  const X* from = x + result_at / P::inner * P::extent * P::inner + result_at % P::inner;
  int found[N];
#pragma unroll
  for (int i = 0; i < N; i++) found[i] = neutral;
  for (int e = slice; e < P::extent; e += slices) {
    Neighbours<X, N> read;
    read.load(from + (long long)e * P::inner);
#pragma unroll
    for (int i = 0; i < N; i++) found[i] = reduced<P>(found[i], term<P>(read.get(i), e));
  }
#pragma unroll
  for (int i = 0; i < N; i++) shared[i * P::threads + threadIdx.x] = found[i];
  __syncthreads();
#pragma unroll
  for (int half = slices / 2; half > 0; half /= 2) {
    if (slice < half) {
#pragma unroll
      for (int i = 0; i < N; i++) {
        int at = i * P::threads + threadIdx.x;
        shared[at] = reduced<P>(shared[at], shared[at + half * P::columns]);
      }
    }
    __syncthreads();
  }
  if (slice > 0 || !is_result) return;
  Change<P> changed{table};
  Neighbours<typename P::Y, N> result;
#pragma unroll
  for (int i = 0; i < N; i++) {
    int found_by_all = shared[i * P::threads + threadIdx.x];
    if constexpr (finds_place<P>) {
      y[result_at + i] = typename P::Y(places - 1 - (found_by_all & (places - 1)));
    } else if constexpr (P::reduction == SUM) {
      result.set(i, typename P::Y(average<P>(found_by_all, P::extent, P::extent)));
    } else {
      result.set(i, changed.of(X(found_by_all)));
    }
  }
  if constexpr (!finds_place<P>) result.store(y + result_at);
}

}  // namespace octavo
