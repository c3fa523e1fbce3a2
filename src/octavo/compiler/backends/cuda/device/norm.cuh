// Normalization of integers by the exact sums of their group: integers alone up to the variance, float32 from there on.
#pragma once
#include "row_joins.cuh"

namespace octavo {

// n times the sum of squares, less the square of the sum: n * n times the variance.
__device__ __forceinline__ float scaled_variance(long long count, long long squares, long long total) {
  return float(count * squares - total * total);
}

// numerics.layer_norm of x [rows, columns]; factor, addend: gamma and beta in steps of the result.
template <class P>
__device__ __forceinline__ void layer_norm(const typename P::X* x, const float* factor, const float* addend, typename P::Y* y) {
  constexpr int T = P::threads_of_row;
  int lane = threadIdx.x % T, line = threadIdx.x / T;
  long long row = (long long)blockIdx.x * P::rows_of_block + line;
  bool is_row = row < P::rows;
  const typename P::X* from = x + (is_row ? row : 0) * P::columns;
  int* shared = reinterpret_cast<int*>(shared_memory()) + line * T;
  int total = 0, squares = 0;
  for (int i = lane; i < P::columns; i += T) {
    int q = int(from[i]);
    total += q;
    squares += q * q;
  }
  total = joined<T>(total, shared, lane, Sum());
  squares = joined<T>(squares, shared, lane, Sum());
  if (!is_row) return;
  float variance = __fdiv_rn(scaled_variance(P::columns, squares, total), P::squared_count());
  float root = __fsqrt_rn(__fadd_rn(variance, P::epsilon()));
  float inverse = __fdiv_rn(1.0f, __fmul_rn(root, float(P::columns)));
  for (int i = lane; i < P::columns; i += T) {
    float distance = __int2float_rn(P::columns * int(from[i]) - total);
    float real = __fmaf_rn(distance, __fmul_rn(inverse, factor[i]), addend[i]);
    y[row * P::columns + i] = typename P::Y(rounded(real, P::zero_point, P::qmin, P::qmax));
  }
}

// numerics.group_norm of x [images, pixels, channels]: a block takes the channels of one group. Integers count as unsigned ones:
// their mean is rounded.
template <class P>
__device__ __forceinline__ void group_norm(const typename P::X* x, const float* factor, const float* addend, typename P::Y* y) {
  constexpr int width = P::channels / P::groups, count = P::pixels * width, T = P::threads;
  constexpr int relabelling = is_signed<typename P::X>::value ? 128 : 0;
  int group = blockIdx.x % P::groups;
  long long first = (long long)(blockIdx.x / P::groups) * P::pixels * P::channels + group * width;
  auto* shared = reinterpret_cast<long long*>(shared_memory());
  long long total = 0, squares = 0;
  for (int i = threadIdx.x; i < count; i += T) {
    int q = int(x[first + (long long)(i / width) * P::channels + i % width]) + relabelling;
    total += q;
    squares += q * q;
  }
  total = joined<T>(total, shared, int(threadIdx.x), Sum());
  squares = joined<T>(squares, shared, int(threadIdx.x), Sum());
  float variance = __fdiv_rn(scaled_variance(count, squares, total), P::squared_count());
  float inverse = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(variance, P::epsilon())));
  float mean = __fdiv_rn(float(total), float(count));
  for (int i = threadIdx.x; i < count; i += T) {
    int channel = group * width + i % width;
    long long at = first + (long long)(i / width) * P::channels + i % width;
    float multiplier = __fmul_rn(inverse, factor[channel]);
    float bias = __fmaf_rn(-mean, multiplier, addend[channel]);
    float real = __fmaf_rn(__int2float_rn(int(x[at]) + relabelling), multiplier, bias);
    y[at] = typename P::Y(rounded(real, P::zero_point, P::qmin, P::qmax));
  }
}

// a * b / 2**31, half up.
__device__ __forceinline__ long long high_product(long long a, long long b) { return (a * b + (1LL << 30)) >> 31; }

// 1 / sqrt(total) in fixed point, by Newton's method: mantissa * 2**-31 * 2**-exponent; numerics.inverse_root.
struct InverseRoot {
  long long mantissa;
  int exponent;

  __device__ __forceinline__ explicit InverseRoot(int total) {
    long long value = total;
    exponent = 11;
    if (value >= 1LL << 29) {
      value >>= 2;
      exponent = 12;
    }
#pragma unroll
    for (int pairs = 8; pairs > 0; pairs /= 2) {
      if (value < 1LL << (29 - 2 * pairs)) {
        value <<= 2 * pairs;
        exponent -= pairs;
      }
    }
    long long half = (value + 2) >> 2, x = 1LL << 28;
    constexpr long long three_halves = 3LL << 27, sqrt_half = 1518500250;  // with 28 bits behind the point, and with 31
#pragma unroll
    for (int step = 0; step < 5; step++) {
      long long cube = high_product(high_product(x, x), x) << 6;
      x = (high_product(three_halves, x) - high_product(half, cube)) << 3;
    }
    mantissa = total <= 1 ? (1LL << 31) - 1 : high_product(x, sqrt_half) << maximum(-exponent, 0);
    exponent = total <= 1 ? 0 : maximum(exponent, 0);
  }

  // d times it, in steps of 1 / 128, half away from 0; whether 128 joins the exponent or the product decides about last bits.
  template <bool in_exponent>
  __device__ __forceinline__ int times_128(int d) const {
    int left = in_exponent ? maximum(7 - exponent, 0) : 7, right = in_exponent ? maximum(exponent - 7, 0) : exponent;
    long long product = high_product((long long)d << left, mantissa), magnitude = product < 0 ? -product : product;
    magnitude = (magnitude + ((1LL << right) >> 1)) >> right;
    return int(product < 0 ? -magnitude : magnitude);
  }
};

// numerics.l2_normalize of x [rows, columns]: each row over its norm.
template <class P>
__device__ __forceinline__ void l2_normalize(const typename P::X* x, typename P::Y* y) {
  constexpr int T = P::threads_of_row;
  int lane = threadIdx.x % T, line = threadIdx.x / T;
  long long row = (long long)blockIdx.x * P::rows_of_block + line;
  bool is_row = row < P::rows;
  const typename P::X* from = x + (is_row ? row : 0) * P::columns;
  int* shared = reinterpret_cast<int*>(shared_memory()) + line * T;
  int squares = 0;
  for (int i = lane; i < P::columns; i += T) {
    int d = int(from[i]) - P::x_zero_point;
    squares += d * d;
  }
  squares = joined<T>(squares, shared, lane, Sum());
  if (!is_row) return;
  if constexpr (P::is_fixed) {
    InverseRoot inverse(squares);
    for (int i = lane; i < P::columns; i += T) {
      int d = int(from[i]) - P::x_zero_point;
      int steps = inverse.template times_128<is_signed<typename P::X>::value>(d);
      y[row * P::columns + i] = typename P::Y(clamped(steps + P::zero_point, P::qmin, P::qmax));
    }
  } else {
    float root = __fsqrt_rn(__int2float_rn(maximum(squares, 1)));
    float multiplier = __fdiv_rn(1.0f, __fmul_rn(root, P::y_scale()));
    for (int i = lane; i < P::columns; i += T) {
      int result = requantized(int(from[i]) - P::x_zero_point, multiplier, P::zero_point, P::qmin, P::qmax);
      y[row * P::columns + i] = typename P::Y(result);
    }
  }
}

}  // namespace octavo
