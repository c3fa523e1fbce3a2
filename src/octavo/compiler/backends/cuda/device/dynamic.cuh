// Quantization at run time, and what follows a product of its integers: scale and zero point are read from memory, a pair of floats
// for each part of the input. As numerics/dynamic.py has it.
#pragma once
#include "row_joins.cuh"

namespace octavo {

// How parameters follow from a range; numbers as `kernels/dynamic.py` writes them.
enum DynamicStyle { ONNX = 0, LITERT = 1, TORCH = 2, TORCH_SYMMETRIC = 3 };

// Of two ends of ranges, NaN where one is: fminf and fmaxf would lose it.
__device__ __forceinline__ float lower_end(float end, float value) { return value < end || value != value ? value : end; }
__device__ __forceinline__ float upper_end(float end, float value) { return value > end || value != value ? value : end; }
struct LowerEnd {
  __device__ __forceinline__ float operator()(float a, float b) const { return lower_end(a, b); }
};
struct UpperEnd {
  __device__ __forceinline__ float operator()(float a, float b) const { return upper_end(a, b); }
};

// x: [rows, size]; ranges: [rows, parts, 2], the least and the greatest of 0 and the values of a part, NaN where one of these is.
// A block takes one.
template <class P>
__device__ __forceinline__ void dynamic_ranges(const float* x, float* ranges) {
  constexpr int T = P::threads;
  long long row = blockIdx.x / P::parts, part = blockIdx.x % P::parts;
  const float* from = x + row * P::size;
  long long begin = part * P::part, end = begin + P::part < P::size ? begin + P::part : P::size;
  float low = 0.0f, high = 0.0f;
  for (long long i = begin + threadIdx.x; i < end; i += T) {
    float value = from[i];
    low = lower_end(low, value);
    high = upper_end(high, value);
  }
  float* shared = reinterpret_cast<float*>(shared_memory());
  low = joined<T>(low, shared, int(threadIdx.x), LowerEnd());
  high = joined<T>(high, shared, int(threadIdx.x), UpperEnd());
  if (threadIdx.x > 0) return;
  ranges[2 * blockIdx.x] = low;
  ranges[2 * blockIdx.x + 1] = high;
}

__device__ __forceinline__ float whole(float value) { return __int2float_rn(__float2int_rn(value)); }
__device__ __forceinline__ float bounded(float value, float low, float high) { return fminf(fmaxf(value, low), high); }

template <class P>
__device__ __forceinline__ void parameters_of(float low, float high, float& scale, float& zero_point) {
  constexpr float qmin = P::qmin, qmax = P::qmax;
  float span = __fsub_rn(high, low);
  if constexpr (P::style == ONNX) {
    scale = __fdiv_rn(span, 255.0f);
    scale = scale == 0.0f ? 1.0f : scale;
    zero_point = whole(bounded(__fdiv_rn(__fsub_rn(0.0f, low), scale), 0.0f, 255.0f));
  } else if constexpr (P::style == LITERT) {
    float factor = span == 0.0f ? 1.0f : __fdiv_rn(255.0f, span);
    float below = __fmul_rn(low, factor), above = __fmul_rn(high, factor);
    bool errs_below = __fadd_rn(__fadd_rn(-128.0f, below), __fadd_rn(127.0f, above)) > 0.0f;
    float zero = errs_below ? __fsub_rn(-128.0f, below) : __fsub_rn(127.0f, above);
    zero_point = whole(bounded(zero, -128.0f, 127.0f)) + 128.0f;
    scale = __fdiv_rn(1.0f, factor);
  } else if constexpr (P::style == TORCH_SYMMETRIC) {
    scale = fmaxf(__fdiv_rn(fmaxf(-low, high), (qmax - qmin) / 2.0f), P::least());
    zero_point = 128.0f;
  } else {
    scale = fmaxf(__fdiv_rn(span, qmax - qmin), P::least());
    zero_point = bounded(qmin - whole(__fdiv_rn(low, scale)), qmin, qmax);
  }
  constexpr float largest = 3.402823466e38f;
  bool is_finite = low >= -largest && high <= largest && scale <= largest;
  scale = is_finite ? scale : __int_as_float(0x7fc00000);
  zero_point = is_finite ? zero_point : 0.0f;
}

// ranges: [rows, parts, 2]; parameters: [rows, 2], scale and zero point. A warp takes a row.
template <class P>
__device__ __forceinline__ void dynamic_parameters(const float* ranges, float* parameters) {
  constexpr int T = 32;
  const float* from = ranges + 2LL * blockIdx.x * P::parts;
  float low = 0.0f, high = 0.0f;
  for (int i = threadIdx.x; i < P::parts; i += T) {
    low = lower_end(low, from[2 * i]);
    high = upper_end(high, from[2 * i + 1]);
  }
  float* shared = reinterpret_cast<float*>(shared_memory());
  low = joined<T>(low, shared, int(threadIdx.x), LowerEnd());
  high = joined<T>(high, shared, int(threadIdx.x), UpperEnd());
  if (threadIdx.x == 0) parameters_of<P>(low, high, parameters[2 * blockIdx.x], parameters[2 * blockIdx.x + 1]);
}

// x by its steps along images, lines, columns, channels; y: dense, with lines and columns of the zero point around each image.
template <class P>
__device__ __forceinline__ void dynamic_quantize(const float* x, const float* parameters, unsigned char* y) {
  long long item = (long long)blockIdx.x * P::threads + threadIdx.x;
  if (item >= P::items) return;
  int channel = int(item % P::channels), column = int(item / P::channels % P::columns) - P::left;
  int line = int(item / (P::channels * P::columns) % P::lines) - P::top;
  long long image = item / (P::channels * P::columns * P::lines), row = image / P::images_of_row;
  float scale = parameters[2 * row];
  int zero_point = int(parameters[2 * row + 1]), q = 0;
  if (line >= 0 && line < P::x_lines && column >= 0 && column < P::x_columns) {
    float value = x[image * P::image_step + line * P::line_step + column * P::column_step + channel * P::channel_step];
    float steps = P::style == ONNX ? __fdiv_rn(value, scale) : __fmul_rn(value, __fdiv_rn(1.0f, scale));
    q = clamped(__float2int_rn(steps), P::qmin - zero_point, P::qmax - zero_point);
  }
  y[item] = (unsigned char)(q + zero_point);
}

// sums: [pixels, channels] of products with integers as they lie; weights: what each channel's add up to; y: those of the integers
// less their zero point, or as numerics.dequantize_accumulator has them.
template <class P>
__device__ __forceinline__ void dynamic_result(const int* sums, const float* parameters, const int* weights, const float* multiplier,
                                               const float* bias, typename P::Y* y) {
  long long item = (long long)blockIdx.x * P::threads + threadIdx.x;
  if (item >= P::items) return;
  int channel = int(item % P::channels);
  long long row = item / P::channels / P::pixels_of_row;
  int sum = sums[item] - int(parameters[2 * row + 1]) * weights[channel];
  if constexpr (P::gives_sums) {
    y[item] = sum;
  } else {
    float scale = parameters[2 * row], real = __int2float_rn(sum);
    float result = P::is_stepwise ? __fadd_rn(__fmul_rn(real, __fmul_rn(scale, multiplier[channel])), bias[channel])
                                  : __fmaf_rn(__fmul_rn(real, scale), multiplier[channel], bias[channel]);
    result = P::has_low && P::low() > result ? P::low() : result;  // NaN stays
    y[item] = P::has_high && P::high() < result ? P::high() : result;
  }
}

}  // namespace octavo
