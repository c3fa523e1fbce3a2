// float32 functions of single elements, by the operations of their definition: the bits of numerics.float_function.
#pragma once
#include "base.cuh"

namespace octavo {

__device__ __forceinline__ float greater(float a, float b) { return a > b ? a : b; }  // b where they can't be compared or are equal
__device__ __forceinline__ float lesser(float a, float b) { return a < b ? a : b; }
__device__ __forceinline__ float leaky(float x, float slope) { return x > 0.0f ? x : __fmul_rn(x, slope); }
__device__ __forceinline__ float negative(float x) { return __int_as_float(__float_as_int(x) ^ int(0x80000000u)); }
__device__ __forceinline__ float magnitude(float x) { return __int_as_float(__float_as_int(x) & 0x7fffffff); }

// Polynomials by their coefficients of rising powers.
template <int count>
__device__ __forceinline__ float series(float x, const float (&coefficients)[count]) {
  float value = coefficients[count - 1];
#pragma unroll
  for (int i = count - 2; i >= 0; i--) value = __fmaf_rn(value, x, coefficients[i]);
  return value;
}

__device__ __forceinline__ float two_to(int power) { return __int_as_float((power + 127) << 23); }

// exp(r) and n of x = n * ln 2 + r, where x is brought into [low; high] before.
struct PartsOfExp {
  float series_of_rest;
  int power;

  __device__ __forceinline__ PartsOfExp(float x, float low, float high) {
    constexpr float log2_e = 1.4426950408889634f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    constexpr float magic = 12582912.0f;  // 1.5 * 2**23: adding it rounds half to even, and its low bits then hold the integer
    constexpr float coefficients[7] = {1.0f, 1.0f, 0.49999993447277175f, 0.1666652062663931f, 0.041668388149583784f,
                                       0.008368717351253226f, 0.0013814593660019829f};
    float value = x > high ? high : x;
    value = value < low ? low : value;
    float shifted = __fmaf_rn(value, log2_e, magic);
    float full = __fsub_rn(shifted, magic);
    float rest = __fmaf_rn(full, -ln2_low, __fmaf_rn(full, -ln2_high, value));
    series_of_rest = series(rest, coefficients);
    power = __float_as_int(shifted) - 0x4b400000;
  }
};

__device__ __forceinline__ float exponential(float x) {
  PartsOfExp parts(x, -104.0f, 89.0f);  // beyond, exp is 0 and infinite
  int half = parts.power >> 1;
  return __fmul_rn(__fmul_rn(parts.series_of_rest, two_to(half)), two_to(parts.power - half));
}

__device__ __forceinline__ float sigmoid(float x) {
  PartsOfExp parts(x, -88.0f, 88.0f);
  float e = __fmul_rn(parts.series_of_rest, two_to(parts.power));
  return __fdiv_rn(e, __fadd_rn(1.0f, e));
}

// x * P(x * x) / Q(x * x), exactly -1 and 1 beyond the limit.
template <int above, int below>
__device__ __forceinline__ float rational(float x, const float (&numerator)[above], const float (&denominator)[below], float limit) {
  float square = __fmul_rn(x, x);
  float quotient = __fdiv_rn(__fmul_rn(x, series(square, numerator)), series(square, denominator));
  constexpr float below_one = 0.99999994f;  // within the limit no value rounds to 1
  quotient = quotient > below_one ? below_one : quotient;
  quotient = quotient < -below_one ? -below_one : quotient;
  return x > limit ? 1.0f : x < -limit ? -1.0f : quotient;
}

__device__ __forceinline__ float hyperbolic_tangent(float x) {
  constexpr float numerator[5] = {0.999999979f, 0.133793392f, 0.00349358361f, 2.05760293e-05f, 1.33087084e-08f};
  constexpr float denominator[5] = {1.0f, 0.467126544f, 0.0258693604f, 0.000328235385f, 7.75778486e-07f};
  return rational(x, numerator, denominator, 9.010913f);
}

__device__ __forceinline__ float error_function(float x) {
  constexpr float numerator[7] = {1.12837911f,    0.200779571f,    0.0506854883f,  0.00373553182f,
                                  0.00014245543f, -1.95505948e-06f, 1.98130003e-08f};
  constexpr float denominator[5] = {1.0f, 0.511267878f, 0.11535059f, 0.0144244845f, 0.000963575203f};
  return rational(x, numerator, denominator, 3.9192057f);
}

}  // namespace octavo
