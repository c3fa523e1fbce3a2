// From real numbers to integers and back. P is the structure of a kernel's parameters.
#pragma once
#include "neighbours.cuh"

namespace octavo {

// Where ties go; numbers as `kernels/quantize.py` writes them.
enum Ties { HALF_EVEN = 0, HALF_UP = 1, HALF_AWAY = 2 };

// floor(steps + 1/2) in exact arithmetic: the fraction of a float32 is one.
__device__ __forceinline__ float half_up(float steps) {
  float whole = floorf(steps);
  return __fsub_rn(steps, whole) >= 0.5f ? __fadd_rn(whole, 1.0f) : whole;
}

// numerics.quantize of a real number by its scale, as an integer from `low` to `high`; NaN is `low`.
template <int ties>
__device__ __forceinline__ int quantized(float real, float scale, int zero_point, int low, int high) {
  float steps = __fdiv_rn(real, scale);
  // The greater of NaN and a number is the number; bounds are integers, so that ties stay ties.
  float bounded = fminf(fmaxf(steps, float(low - zero_point)), float(high - zero_point));
  if (ties == HALF_UP) bounded = half_up(bounded);
  if (ties == HALF_AWAY) bounded = bounded < 0.0f ? -half_up(-bounded) : half_up(bounded);
  return __float2int_rn(bounded) + zero_point;
}

// Which of the scales along an axis an element has: `channels` of them, each for `inner` neighbours.
template <class P>
__device__ __forceinline__ int channel_of(long long item) {
  return P::channels == 1 ? 0 : int(item / P::inner % P::channels);
}

template <class P>
__device__ __forceinline__ void quantize(const float* x, const float* scales, const int* zero_points, typename P::Y* y) {
  constexpr int N = P::elements_of_thread;
  long long first = ((long long)blockIdx.x * P::threads + threadIdx.x) * N;
  if (first >= P::items) return;
  auto quantized_at = [&](float real, long long item) {
    int channel = channel_of<P>(item);
    float scale = P::channels == 1 ? P::scale() : scales[channel];
    int zero_point = P::channels == 1 ? P::zero_point : zero_points[channel];
    return typename P::Y(quantized<P::ties>(real, scale, zero_point, P::qmin, P::qmax));
  };
  if (N == 1 || first + N <= P::items) {
    Neighbours<float, N> read;
    Neighbours<typename P::Y, N> result;
    read.load(x + first);
#pragma unroll
    for (int i = 0; i < N; i++) result.set(i, quantized_at(read.get(i), first + i));
    result.store(y + first);
  } else {
    for (long long i = first; i < P::items; i++) y[i] = quantized_at(x[i], i);
  }
}

template <class P>
__device__ __forceinline__ void dequantize(const typename P::X* x, const float* scales, const int* zero_points, float* y) {
  constexpr int N = P::elements_of_thread;
  long long first = ((long long)blockIdx.x * P::threads + threadIdx.x) * N;
  if (first >= P::items) return;
  auto real_at = [&](typename P::X q, long long item) {
    int channel = channel_of<P>(item);
    float scale = P::channels == 1 ? P::scale() : scales[channel];
    int zero_point = P::channels == 1 ? P::zero_point : zero_points[channel];
    // Of int32 the difference has 33 bits.
    return __fmul_rn(sizeof(q) == 4 ? float((long long)q - zero_point) : __int2float_rn(int(q) - zero_point), scale);
  };
  if (N == 1 || first + N <= P::items) {
    Neighbours<typename P::X, N> read;
    Neighbours<float, N> result;
    read.load(x + first);
#pragma unroll
    for (int i = 0; i < N; i++) result.set(i, real_at(read.get(i), first + i));
    result.store(y + first);
  } else {
    for (long long i = first; i < P::items; i++) y[i] = real_at(x[i], i);
  }
}

}  // namespace octavo
