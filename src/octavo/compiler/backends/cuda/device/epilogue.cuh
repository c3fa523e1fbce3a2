// From the sums of products to what a kernel writes. P is the structure of a kernel's parameters.
#pragma once
#include "float_function.cuh"
#include "tail.cuh"

namespace octavo {

// How a result is formed of int32 sums; numbers as `kernels/output.py` writes them.
enum Result { INTEGERS = 0, FUSED_FLOATS = 1, STEPWISE_FLOATS = 2, SUMS = 3, FUNCTIONS = 4 };

// The result of channel `channel`, its bias in the sum: integers as requantize has them, with a real bias in one fused
// multiply-add, and what the tail makes of them; floats as dequantize_accumulator has them, or integers of a function of these.
template <class P>
struct Epilogue {
  const float* multiplier;
  const float* real_bias;
  Tail<P> tail;
  int stride;  // from one row of numbers of the channels to the next: the real bias, what a function reads, factors of its result

  __device__ __forceinline__ int integer(int acc, int channel) const {
    float sum = __int2float_rn(acc);
    float real = P::has_real_bias ? __fmaf_rn(sum, multiplier[channel], real_bias[channel]) : __fmul_rn(sum, multiplier[channel]);
    return rounded_number(real, P::zero_point, P::qmin, P::qmax);
  }

  __device__ __forceinline__ float real(int acc, int channel) const {
    float sum = __int2float_rn(acc);
    float result = P::result == STEPWISE_FLOATS ? __fadd_rn(__fmul_rn(sum, multiplier[channel]), real_bias[channel])
                                                : __fmaf_rn(sum, multiplier[channel], real_bias[channel]);
    result = P::has_low ? fmaxf(result, P::low()) : result;
    return P::has_high ? fminf(result, P::high()) : result;
  }

  __device__ __forceinline__ int function(int acc, int channel) const {
    float found = P::function(real(acc, channel), real_bias + channel, stride);
    float steps = __fmul_rn(found, P::has_factors ? real_bias[(P::real_rows - 1) * stride + channel] : P::factor());
    return rounded_number(steps, P::zero_point, P::qmin, P::qmax);
  }

  // `beside`: the integer that the tail reads at the result's place.
  template <class Y>
  __device__ __forceinline__ Y of(int acc, int channel, int beside) const {
    if constexpr (P::result == INTEGERS) {
      return Y(tail.of(integer(acc, channel), beside));
    } else if constexpr (P::result == FUNCTIONS) {
      return Y(tail.of(function(acc, channel), beside));
    } else if constexpr (P::result == SUMS) {
      return Y(acc);
    } else {
      return Y(real(acc, channel));
    }
  }
};

}  // namespace octavo
