// conv2d as a product of matrices: rows are pixels, columns output channels, and the windows are gathered tile by tile.
#pragma once
#include "rows.cuh"

namespace octavo {

template <class P>
struct ConvolutionWindows : P {
  static constexpr int rows = P::tile_m, offset = 0, group_in = P::in_channels / P::groups, zero_point = P::x_zero_point;
  static constexpr int pixels = P::batch * P::out_height * P::out_width;
  __device__ __forceinline__ static constexpr int lying_row(int row) { return row; }
};

// x: [batch, height, width, in_channels]; w: packed tiles [groups, tiles_n, tiles of k], then 16 bytes of x's zero point; constants:
// [groups, tiles_n * tile_n]. The grid is (tiles of pixels, groups * tiles_n, splits); with several splits, y takes int32 sums of each,
// [splits, pixels, out_channels], of which the first starts from the bias. beside, tables: as Tail<P> reads them, beside as y lies.
template <class P>
__device__ __forceinline__ void conv2d_gemm(const typename P::X* x, const int8* w, const int* bias, const float* multiplier,
                                            const float* real_bias, const int* weight_zero_point,
                                            const typename P::Beside* beside, const unsigned char* tables, typename P::Y* y) {
  using G = ConvolutionWindows<P>;
  constexpr int group_out = P::out_channels / P::groups;
  constexpr int tiles_n = (group_out + P::tile_n - 1) / P::tile_n, tiles_k = (WindowRows<P, G, typename P::X>::inner + P::tile_k - 1) / P::tile_k;
  constexpr int split = (tiles_k + P::splits - 1) / P::splits;
  int group = blockIdx.y / tiles_n, tile_n = blockIdx.y % tiles_n;
  int first_pixel = blockIdx.x * P::tile_m, channel = tile_n * P::tile_n, constants = blockIdx.y * P::tile_n;
  const int8* outside = w + (long long)P::groups * tiles_n * tiles_k * Tile<P>::bytes_b;
  WindowRows<P, G, typename P::X> rows(x, outside, first_pixel, group);
  PackedTiles<P> columns{w + (long long)blockIdx.y * tiles_k * Tile<P>::bytes_b};
  Core<P> core;
  if (P::splits == 1 || blockIdx.z == 0) {
    start_sums<P>(core, bias + constants);
  } else {
    zero_sums<P>(core);
  }
  int first = blockIdx.z * split;
  multiply_tiles<P>(rows, columns, core, first, minimum(first + split, tiles_k));
  long long at = (long long)(blockIdx.z * G::pixels + first_pixel) * P::out_channels + group * group_out + channel;
  finish<P>(core, multiplier + constants, real_bias + constants, weight_zero_point + constants,
            Results<P>{y + at, beside + at, tables, P::out_channels, G::pixels - first_pixel, group_out - channel});
}

// The sums of all splits, as results: sums [splits, pixels, channels], each thread `store` channels of one pixel.
template <class P>
__device__ __forceinline__ void conv2d_splits(const int* sums, const float* multiplier, const float* real_bias,
                                              const typename P::Beside* beside, const unsigned char* tables, typename P::Y* y) {
  using Y = typename P::Y;
  constexpr int items = P::pixels * P::out_channels / P::store;
  int item = blockIdx.x * P::threads + threadIdx.x;
  if (item >= items) return;
  BesideRun<typename P::Beside, P::store> read;
  if constexpr (Tail<P>::reads) read.load(beside + (long long)item * P::store);
  int total[P::store];
#pragma unroll
  for (int i = 0; i < P::store; i++) total[i] = 0;
#pragma unroll
  for (int split = 0; split < P::splits; split++) {
    int part[P::store];
    load_constants(part, sums + ((long long)split * P::pixels * P::out_channels + (long long)item * P::store));
#pragma unroll
    for (int i = 0; i < P::store; i++) total[i] += part[i];
  }
  int channel = item * P::store % P::out_channels;
  Epilogue<P> epilogue{multiplier, real_bias, {tables}, P::out_channels};
  Y values[P::store];
#pragma unroll
  for (int i = 0; i < P::store; i++)
    values[i] = epilogue.template of<Y>(total[i], channel + i, Tail<P>::reads ? int(read.get(i)) : 0);
  store_results<P::store>(y + (long long)item * P::store, values);
}

}  // namespace octavo
