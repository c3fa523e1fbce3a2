// From the exact sum of integers to their mean, or their sum, in the result's integers. P is the structure of parameters.
#pragma once
#include "base.cuh"

namespace octavo {

// How a sum becomes a result; numbers as `kernels/average.py` writes them.
enum AverageRounding { AVERAGE_HALF_EVEN = 0, AVERAGE_HALF_EVEN_STORED = 1, AVERAGE_HALF_AWAY = 2 };

// numerics.avg_pool2d of the sum of `present` integers as they lie, by the number `count` that they count as. Where P says that
// all results have one count, its factor is a constant.
template <class P>
__device__ __forceinline__ int average(int sum, int present, int count) {
  if constexpr (P::rounding == AVERAGE_HALF_AWAY) {
    int magnitude = sum < 0 ? -sum : sum;
    int mean = (2 * magnitude + count) / (2 * count);
    return clamped(sum < 0 ? -mean : mean, P::qmin, P::qmax);
  } else {
    float factor = P::has_one_count ? P::factor() : __fdiv_rn(P::multiplier(), float(count));
    float real = __fmul_rn(__int2float_rn(sum - present * P::x_zero_point), factor);
    return P::rounding == AVERAGE_HALF_EVEN ? rounded(real, P::zero_point, P::qmin, P::qmax)
                                            : rounded_stored(real, P::zero_point, P::qmin, P::qmax);
  }
}

}  // namespace octavo
