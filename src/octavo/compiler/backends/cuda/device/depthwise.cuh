// Depthwise conv2d of NHWC integers: a thread computes four neighbouring output channels of `pixels` results in a row. A product of
// one channel is a DP4A whose other three weights are zeros: no operand has to be unpacked.
#pragma once
#include "dot.cuh"
#include "epilogue.cuh"
#include "neighbours.cuh"

namespace octavo {

// The input channels of four output channels from `channel` on, at one pixel: one each where an input channel has one output.
template <class P>
__device__ __forceinline__ int four_channels(const typename P::X* pixel, int channel) {
  constexpr int multiplicity = P::out_channels / P::in_channels;
  if constexpr (multiplicity == 1 && P::in_channels % 4 == 0) {
    return *reinterpret_cast<const int*>(pixel + channel);
  } else if constexpr (multiplicity % 4 == 0) {
    int value = int(pixel[channel / multiplicity]) & 255;
    return value * 0x01010101;
  } else {
    int each[4];
#pragma unroll
    for (int i = 0; i < 4; i++) each[i] = channel + i < P::out_channels ? int(pixel[(channel + i) / multiplicity]) : 0;
    return packed(each[0], each[1], each[2], each[3]);
  }
}

// x: [batch, height, width, in_channels]; w: [rows, columns, fours of output channels], the last four filled with zeros; bias: the
// sums' start, zero points included; weight_zero_point: of each output channel.
template <class P>
__device__ __forceinline__ void depthwise(const typename P::X* x, const int* w, const int* bias, const float* multiplier,
                                          const float* real_bias, const int* weight_zero_point,
                                          const typename P::Beside* beside, const unsigned char* tables, typename P::Y* y) {
  using X = typename P::X;
  constexpr int N = P::pixels_of_thread, fours = (P::out_channels + 3) / 4, steps = (P::out_width + N - 1) / N;
  constexpr int columns = (N - 1) * P::stride_width + (P::kernel_width - 1) * P::dilation_width + 1;
  constexpr int padding = packed(P::x_zero_point, P::x_zero_point, P::x_zero_point, P::x_zero_point);
  unsigned item = blockIdx.x * unsigned(P::threads) + threadIdx.x;
  if (item >= unsigned(P::items)) return;
  int four = int(item % unsigned(fours)), channel = 4 * four;
  int line = int(item / unsigned(fours)), first = line % steps * N;
  int row = line / steps % P::out_height, image = line / steps / P::out_height;
  int acc[N][4], ones[P::has_weight_zero_point ? N : 1][4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int start = channel + i < P::out_channels ? bias[channel + i] : 0;
#pragma unroll
    for (int n = 0; n < N; n++) {
      acc[n][i] = start;
      if constexpr (P::has_weight_zero_point) ones[n][i] = 0;
    }
  }
  int from_column = first * P::stride_width - P::pad_left;
#pragma unroll
  for (int r = 0; r < P::kernel_height; r++) {
    int at_row = row * P::stride_height - P::pad_top + r * P::dilation_height;
    bool in_rows = at_row >= 0 && at_row < P::in_height;
    const X* line_of_x = x + ((long long)(image * P::in_height + at_row) * P::in_width + from_column) * P::in_channels;
    int read[columns];
#pragma unroll
    for (int c = 0; c < columns; c++) {
      // Where the stride or the dilation passes over a column, no product reads it: the load is left out.
      bool is_read = in_rows && from_column + c >= 0 && from_column + c < P::in_width;
      read[c] = is_read ? four_channels<P>(line_of_x + c * P::in_channels, channel) : padding;
    }
#pragma unroll
    for (int s = 0; s < P::kernel_width; s++) {
      int weights = w[(r * P::kernel_width + s) * fours + four];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        int weight = weights & int(255u << 8 * i);
#pragma unroll
        for (int n = 0; n < N; n++) {
          int values = read[n * P::stride_width + s * P::dilation_width];
          acc[n][i] = dot4<X>(values, weight, acc[n][i]);
          if constexpr (P::has_weight_zero_point) ones[n][i] = dot4<X>(values, 1 << 8 * i, ones[n][i]);
        }
      }
    }
  }
  Epilogue<P> epilogue{multiplier, real_bias, {tables}, P::out_channels};
  using Y = typename P::Y;
#pragma unroll
  for (int n = 0; n < N; n++) {
    if (steps * N > P::out_width && first + n >= P::out_width) break;
    long long at = ((long long)(image * P::out_height + row) * P::out_width + first + n) * P::out_channels + channel;
    Y* to = y + at;
    Neighbours<typename P::Beside, 4> read;
    if constexpr (Tail<P>::reads && P::out_channels % 4 == 0) read.load(beside + at);
    Neighbours<Y, 4> results;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (P::out_channels % 4 != 0 && channel + i >= P::out_channels) break;
      if constexpr (P::has_weight_zero_point) acc[n][i] -= weight_zero_point[channel + i] * ones[n][i];
      int other = 0;
      if constexpr (Tail<P>::reads) other = P::out_channels % 4 == 0 ? int(read.get(i)) : int(beside[at + i]);
      Y result = epilogue.template of<Y>(acc[n][i], channel + i, other);
      if constexpr (P::out_channels % 4 == 0) {
        results.set(i, result);
      } else {
        to[i] = result;
      }
    }
    if constexpr (P::out_channels % 4 == 0) results.store(to);
  }
}

}  // namespace octavo
