// Pooling over rows and columns of NHWC integers: a thread computes neighbouring channels of one pixel.
#pragma once
#include "average.cuh"
#include "change.cuh"

namespace octavo {

// numerics.float_avg_pool2d has every operation rounded to float32, the taps of a window from the first to the last.
template <class P>
__device__ __forceinline__ int float_average(float total, int count) {
  float mean = __fdiv_rn(__fdiv_rn(total, float(count)), P::y_scale());
  float stored = __fadd_rn(mean, float(P::zero_point));
  return rounded(stored, 0, P::qmin, P::qmax);
}

template <class P>
__device__ __forceinline__ void pool2d(const typename P::X* x, const typename P::Y* table, typename P::Y* y) {
  using X = typename P::X;
  constexpr int N = P::channels_of_thread, groups = P::channels / N;
  long long item = (long long)blockIdx.x * P::threads + threadIdx.x;
  if (item >= P::items) return;
  int group = int(item % groups);
  long long pixel = item / groups;
  int column = int(pixel % P::out_width), row = int(pixel / P::out_width % P::out_height);
  int image = int(pixel / (P::out_width * P::out_height));
  int found[N], present = 0;
  float real[N];
#pragma unroll
  for (int i = 0; i < N; i++) {
    found[i] = P::is_max ? (is_signed<X>::value ? -128 : 0) : 0;
    real[i] = 0.0f;
  }
  for (int r = 0; r < P::kernel_height; r++) {
    int at_row = row * P::stride_height - P::pad_top + r * P::dilation_height;
    if (at_row < 0 || at_row >= P::in_height) continue;
    for (int s = 0; s < P::kernel_width; s++) {
      int at_column = column * P::stride_width - P::pad_left + s * P::dilation_width;
      if (at_column < 0 || at_column >= P::in_width) continue;
      present++;
      Neighbours<X, N> read;
      read.load(x + ((long long)(image * P::in_height + at_row) * P::in_width + at_column) * P::channels + group * N);
#pragma unroll
      for (int i = 0; i < N; i++) {
        int q = int(read.get(i));
        if constexpr (P::is_max) {
          found[i] = maximum(found[i], q);
        } else if constexpr (P::is_float) {
          real[i] = __fadd_rn(real[i], __fmul_rn(__int2float_rn(q - P::x_zero_point), P::x_scale()));
        } else {
          found[i] += q;
        }
      }
    }
  }
  int count = P::counts_padding ? P::kernel_height * P::kernel_width : maximum(present, 1);
  Change<P> changed{table};
  Neighbours<typename P::Y, N> result;
#pragma unroll
  for (int i = 0; i < N; i++) {
    if constexpr (P::is_max) {
      result.set(i, changed.of(X(found[i])));
    } else if constexpr (P::is_float) {
      result.set(i, typename P::Y(float_average<P>(real[i], count)));
    } else {
      result.set(i, typename P::Y(average<P>(found[i], present, count)));
    }
  }
  result.store(y + pixel * P::channels + group * N);
}

}  // namespace octavo
