// Bilinear resizing of NHWC integers: a thread computes neighbouring channels of one pixel.
#pragma once
#include "change.cuh"

namespace octavo {

// rows, columns: the first pixel of each pixel of the result along the axis, then the second ones, then the distance from the
// first in units of 2**-bits pixels.
template <class P>
__device__ __forceinline__ int between(int first, int second, int fraction) {
  return (first << P::fraction_bits) + (second - first) * fraction;
}

// numerics.resize_bilinear: the shift by twice the bits rounds half up, or half to even.
template <class P>
__device__ __forceinline__ int without_fraction(int sum) {
  constexpr int shift = 2 * P::fraction_bits, half = 1 << (shift - 1);
  return (sum + (P::half_even ? half - 1 + (sum >> shift & 1) : half)) >> shift;
}

template <class P>
__device__ __forceinline__ void resize(const typename P::X* x, const int* rows, const int* columns, const typename P::Y* table,
                                       typename P::Y* y) {
  using X = typename P::X;
  constexpr int N = P::channels_of_thread, groups = P::channels / N;
  long long item = (long long)blockIdx.x * P::threads + threadIdx.x;
  if (item >= P::items) return;
  int group = int(item % groups);
  long long pixel = item / groups;
  int column = int(pixel % P::out_width), row = int(pixel / P::out_width % P::out_height);
  const X* image = x + pixel / (P::out_width * P::out_height) * (P::in_height * P::in_width * P::channels) + group * N;
  Neighbours<X, N> read[2][2];
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      int at = rows[r * P::out_height + row] * P::in_width + columns[c * P::out_width + column];
      read[r][c].load(image + (long long)at * P::channels);
    }
  int down = rows[2 * P::out_height + row], across = columns[2 * P::out_width + column];
  Change<P> changed{table};
  Neighbours<typename P::Y, N> result;
#pragma unroll
  for (int i = 0; i < N; i++) {
    int top = between<P>(int(read[0][0].get(i)), int(read[0][1].get(i)), across);
    int bottom = between<P>(int(read[1][0].get(i)), int(read[1][1].get(i)), across);
    result.set(i, changed.of(X(without_fraction<P>(between<P>(top, bottom, down)))));
  }
  result.store(y + pixel * P::channels + group * N);
}

// The same of real values, every operation rounded to float32: numerics.float_resize_bilinear. Weights lie as the pixels do: those
// of the first ones, then those of the second ones.
template <class P>
__device__ __forceinline__ void float_resize(const typename P::X* x, const int* rows, const int* columns, const float* row_weights,
                                             const float* column_weights, typename P::Y* y) {
  using X = typename P::X;
  constexpr int N = P::channels_of_thread, groups = P::channels / N;
  long long item = (long long)blockIdx.x * P::threads + threadIdx.x;
  if (item >= P::items) return;
  int group = int(item % groups);
  long long pixel = item / groups;
  int column = int(pixel % P::out_width), row = int(pixel / P::out_width % P::out_height);
  const X* image = x + pixel / (P::out_width * P::out_height) * (P::in_height * P::in_width * P::channels) + group * N;
  float total[N];
#pragma unroll
  for (int r = 0; r < 2; r++)
#pragma unroll
    for (int c = 0; c < 2; c++) {
      int at = rows[r * P::out_height + row] * P::in_width + columns[c * P::out_width + column];
      float weight = __fmul_rn(row_weights[r * P::out_height + row], column_weights[c * P::out_width + column]);
      Neighbours<X, N> read;
      read.load(image + (long long)at * P::channels);
#pragma unroll
      for (int i = 0; i < N; i++) {
        float term = __fmul_rn(weight, __fmul_rn(__int2float_rn(int(read.get(i)) - P::x_zero_point), P::x_scale()));
        total[i] = r == 0 && c == 0 ? term : __fadd_rn(total[i], term);
      }
    }
  Neighbours<typename P::Y, N> result;
#pragma unroll
  for (int i = 0; i < N; i++) {
    float steps = __fdiv_rn(total[i], P::y_scale());
    if constexpr (P::cuts_off) steps = __int2float_rn(int(steps));
    result.set(i, typename P::Y(rounded(steps, P::zero_point, P::qmin, P::qmax)));
  }
  result.store(y + pixel * P::channels + group * N);
}

}  // namespace octavo
