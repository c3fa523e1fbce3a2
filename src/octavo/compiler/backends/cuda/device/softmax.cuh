// Softmax of rows of integers, and its logarithm: exponentials from a table, their exact sum, one quotient or logarithm a row.
#pragma once
#include "row_joins.cuh"

namespace octavo {

// A thread's row of x [rows, columns], its greatest integer, and the sum of all its exponentials, which lie by the distance from that.
template <class P>
struct ExponentialRow {
  long long row;
  bool is_row;
  const typename P::X* from;
  int greatest = -128, total = 0;

  __device__ __forceinline__ ExponentialRow(const typename P::X* x, const int* exponentials) {
    constexpr int T = P::threads_of_row;
    int line = threadIdx.x / T;
    row = (long long)blockIdx.x * P::rows_of_block + line;
    is_row = row < P::rows;
    from = x + (is_row ? row : 0) * P::columns;
    int* shared = reinterpret_cast<int*>(shared_memory()) + line * T;
    for (int i = lane(); i < P::columns; i += T) greatest = maximum(greatest, int(from[i]));
    greatest = joined<T>(greatest, shared, lane(), Greatest());
    for (int i = lane(); i < P::columns; i += T) total += exponentials[distance(i)];
    total = joined<T>(total, shared, lane(), Sum());
  }
  __device__ __forceinline__ static int lane() { return threadIdx.x % P::threads_of_row; }
  __device__ __forceinline__ int distance(int i) const { return greatest - int(from[i]); }
};

// numerics.softmax.
template <class P>
__device__ __forceinline__ void softmax(const typename P::X* x, const int* exponentials, typename P::Y* y) {
  ExponentialRow<P> found(x, exponentials);
  if (!found.is_row) return;
  float factor = __fdiv_rn(1.0f, __fmul_rn(__int2float_rn(found.total), P::y_scale()));
  for (int i = found.lane(); i < P::columns; i += P::threads_of_row) {
    int result = requantized(exponentials[found.distance(i)], factor, P::zero_point, P::qmin, P::qmax);
    y[found.row * P::columns + i] = typename P::Y(result);
  }
}

// log2 of a positive integer with 20 bits behind the point: its 8 leading bits behind the highest one choose an entry, 14 interpolate.
__device__ __forceinline__ int log2_of(int total, const int* logarithms) {
  int places = 31 - __clz(total);
  int fraction = int(unsigned(total) << (30 - places)) - (1 << 30);
  int index = fraction >> 22, rest = fraction >> 8 & ((1 << 14) - 1);
  int low = logarithms[index];
  return (places << 20) + low + ((logarithms[index + 1] - low) * rest >> 14);
}

// numerics.log_softmax; logarithms: of 1 to 2 in 256 steps. Factors have 40 bits behind the point.
template <class P>
__device__ __forceinline__ void log_softmax(const typename P::X* x, const int* exponentials, const int* logarithms,
                                            typename P::Y* y) {
  ExponentialRow<P> found(x, exponentials);
  if (!found.is_row) return;
  long long start = (1LL << 39) - (log2_of(found.total, logarithms) - P::log_of_one) * (long long)P::log_factor;
  for (int i = found.lane(); i < P::columns; i += P::threads_of_row) {
    int steps = int((start - found.distance(i) * (long long)P::distance_factor) >> 40);
    y[found.row * P::columns + i] = typename P::Y(clamped(steps + P::zero_point, P::qmin, P::qmax));
  }
}

}  // namespace octavo
