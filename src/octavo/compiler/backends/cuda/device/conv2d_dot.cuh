// conv2d by dot products of four input channels, any strides, padding, dilation and groups: for chips and shapes without a
// matrix product. A thread computes `channels_of_thread` channels of one pixel, neighbours in a warp the next channels.
#pragma once
#include "dot.cuh"
#include "epilogue.cuh"

namespace octavo {

// x: [batch, height, width, in_channels]; w: [groups, rows, columns, quads, out_channels / groups] of four input channels each,
// the last ones zeros; bias: the sums' start, zero points included; weight_zero_point: of each output channel.
template <class P>
__device__ __forceinline__ void conv2d_dot(const typename P::X* x, const int* w, const int* bias, const float* multiplier,
                                           const float* real_bias, const int* weight_zero_point,
                                           const typename P::Beside* beside, const unsigned char* tables, typename P::Y* y) {
  using X = typename P::X;
  constexpr int group_in = P::in_channels / P::groups, group_out = P::out_channels / P::groups;
  constexpr int quads = (group_in + 3) / 4, N = P::channels_of_thread;
  constexpr bool whole_quads = group_in % 4 == 0;
  constexpr int steps = (P::out_channels + N - 1) / N;
  constexpr long long items = (long long)P::batch * P::out_height * P::out_width * steps;
  constexpr int padding = packed(P::x_zero_point, P::x_zero_point, P::x_zero_point, P::x_zero_point);
  long long item = (long long)blockIdx.x * P::threads + threadIdx.x;
  if (item >= items) return;
  int channel = int(item % steps) * N;
  int pixel = int(item / steps);
  int column = pixel % P::out_width, row = pixel / P::out_width % P::out_height, image = pixel / P::out_width / P::out_height;
  int group = channel / group_out, first = channel % group_out;
  int acc[N], ones = 0;
#pragma unroll
  for (int i = 0; i < N; i++) acc[i] = channel + i < P::out_channels ? bias[channel + i] : 0;
  for (int r = 0; r < P::kernel_height; r++) {
    int at_row = row * P::stride_height - P::pad_top + r * P::dilation_height;
    for (int s = 0; s < P::kernel_width; s++) {
      int at_column = column * P::stride_width - P::pad_left + s * P::dilation_width;
      bool inside = at_row >= 0 && at_row < P::in_height && at_column >= 0 && at_column < P::in_width;
      const X* from = x + ((long long)(image * P::in_height + at_row) * P::in_width + at_column) * P::in_channels + group * group_in;
      const int* taps = w + ((group * P::kernel_height + r) * P::kernel_width + s) * quads * group_out + first;
      for (int q = 0; q < quads; q++) {
        int values = padding;
        if (inside) {
          if constexpr (whole_quads) {
            values = *reinterpret_cast<const int*>(from + 4 * q);
          } else {
            int each[4];
#pragma unroll
            for (int i = 0; i < 4; i++) each[i] = 4 * q + i < group_in ? int(from[4 * q + i]) : 0;
            values = packed(each[0], each[1], each[2], each[3]);
          }
        }
        if constexpr (P::has_weight_zero_point) {
          int mask = 4 * q + 4 <= group_in ? 0x01010101 : 0x01010101 >> 8 * (4 * q + 4 - group_in);
          ones = dot4<X>(values, mask, ones);
        }
#pragma unroll
        for (int i = 0; i < N; i++)
          if (N == 1 || channel + i < P::out_channels) acc[i] = dot4<X>(values, taps[q * group_out + i], acc[i]);
      }
    }
  }
  Epilogue<P> epilogue{multiplier, real_bias, {tables}, P::out_channels};
#pragma unroll
  for (int i = 0; i < N; i++) {
    if (channel + i >= P::out_channels) break;
    if constexpr (P::has_weight_zero_point) acc[i] -= weight_zero_point[channel + i] * ones;
    long long at = (long long)pixel * P::out_channels + channel + i;
    y[at] = epilogue.template of<typename P::Y>(acc[i], channel + i, Tail<P>::reads ? int(beside[at]) : 0);
  }
}

}  // namespace octavo
