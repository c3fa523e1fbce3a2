// Functions of two 8-bit tensors, element by element, over shapes that broadcast. P is the structure of a kernel's parameters.
#pragma once
#include "axes.cuh"
#include "neighbours.cuh"

namespace octavo {

// What is computed; numbers as `kernels/pair.py` writes them.
enum PairFunction { INTEGER_SUM = 0, FLOAT_SUM = 1, PRODUCT = 2, MAXIMUM = 3, MINIMUM = 4, PAIR_TABLE = 5, COMPARISON = 6, LOGIC = 7 };

// Whether a relation, by its number, is that of two numbers.
template <int relation, class T>
__device__ __forceinline__ int related(T a, T b) {
  if constexpr (relation == 0) return a == b;
  if constexpr (relation == 1) return a != b;
  if constexpr (relation == 2) return a > b;
  if constexpr (relation == 3) return a >= b;
  if constexpr (relation == 4) return a < b;
  return a <= b;
}

// The result for two integers, as numerics has it.
template <class P>
struct Pair {
  const typename P::Y* table;

  __device__ __forceinline__ int of(int a, int b) const {
    if constexpr (P::function == INTEGER_SUM) {
      int sum = (P::bias + a * P::a_multiplier + b * P::b_multiplier) >> P::shift;
      return clamped(sum + P::zero_point, P::qmin, P::qmax);
    } else if constexpr (P::function == FLOAT_SUM) {
      float inner = __fmaf_rn(small_float(b + P::b_shift), P::b_ratio(), P::bias());
      float real = __fmaf_rn(small_float(a + P::a_shift), P::a_ratio(), inner);
      return rounded_number(real, P::sum_zero_point, P::qmin + P::y_shift, P::qmax + P::y_shift) - P::y_shift;
    } else if constexpr (P::function == PRODUCT) {
      float real = __fmul_rn(small_float((a - P::a_zero_point) * (b - P::b_zero_point)), P::multiplier());
      return P::stored_even ? rounded_stored(real, P::zero_point, P::qmin, P::qmax)
                            : rounded_number(real, P::zero_point, P::qmin, P::qmax);
    } else if constexpr (P::function == MAXIMUM) {
      return clamped(maximum(a, b), P::qmin, P::qmax);
    } else if constexpr (P::function == MINIMUM) {
      return clamped(minimum(a, b), P::qmin, P::qmax);
    } else if constexpr (P::function == COMPARISON) {
      if constexpr (P::in_float) {
        return related<P::relation>(__fmul_rn(small_float(a - P::a_zero_point), P::a_scale()),
                                    __fmul_rn(small_float(b - P::b_zero_point), P::b_scale()));
      } else {
        return related<P::relation>(a + P::a_shift, b + P::b_shift);
      }
    } else if constexpr (P::function == LOGIC) {
      return P::relation == 0 ? a && b : P::relation == 1 ? a || b : !a;
    } else {
      // A row for each value of b, an entry for each integer of a.
      return table[(long long)(b + P::b_shift) * 256 + (a + P::a_shift)];
    }
  }
};

// N neighbours of an operand, whose step along the last axis is 1, or 0 where all are one element.
template <int N, bool is_one, class T>
__device__ __forceinline__ void read_neighbours(const T* from, int (&values)[N]) {
  if constexpr (is_one) {
    int value = int(*from);
#pragma unroll
    for (int i = 0; i < N; i++) values[i] = value;
  } else {
    Neighbours<T, N> read;
    read.load(from);
#pragma unroll
    for (int i = 0; i < N; i++) values[i] = int(read.get(i));
  }
}

template <class P>
__device__ __forceinline__ void pair(const typename P::A* a, const typename P::B* b, const typename P::Y* table, typename P::Y* y) {
  constexpr int N = P::elements_of_thread;
  using Index = typename index_of<(P::items > 0x7fffffffLL)>::type;
  Index first = (Index(blockIdx.x) * P::threads + threadIdx.x) * N;
  if (first >= Index(P::items)) return;
  constexpr Axes a_axes = OCTAVO_AXES(P, a), b_axes = OCTAVO_AXES(P, b);
  Pair<P> function{table};
  if (N == 1 || first + N <= Index(P::items)) {
    int a_values[N], b_values[N];
    read_neighbours<N, P::a_step5 == 0>(a + a_axes.at(first), a_values);
    read_neighbours<N, P::b_step5 == 0>(b + b_axes.at(first), b_values);
    Neighbours<typename P::Y, N> result;
#pragma unroll
    for (int i = 0; i < N; i++) result.set(i, typename P::Y(function.of(a_values[i], b_values[i])));
    result.store(y + first);
  } else {
    for (Index i = first; i < Index(P::items); i++) y[i] = typename P::Y(function.of(int(a[a_axes.at(i)]), int(b[b_axes.at(i)])));
  }
}

// a where the condition is not 0, b elsewhere.
template <class P>
__device__ __forceinline__ void select(const unsigned char* condition, const typename P::Y* a, const typename P::Y* b, typename P::Y* y) {
  using Index = typename index_of<(P::items > 0x7fffffffLL)>::type;
  Index item = Index(blockIdx.x) * P::threads + threadIdx.x;
  if (item >= Index(P::items)) return;
  constexpr Axes c_axes = OCTAVO_AXES(P, c), a_axes = OCTAVO_AXES(P, a), b_axes = OCTAVO_AXES(P, b);
  y[item] = condition[c_axes.at(item)] ? a[a_axes.at(item)] : b[b_axes.at(item)];
}

}  // namespace octavo
