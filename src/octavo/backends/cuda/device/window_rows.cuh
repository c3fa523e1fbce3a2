// Sources that fill tiles of a product's rows: pixels of a convolution, and plain matrices.
#pragma once
#include "gemm.cuh"

namespace octavo {

// The windows of a convolution's pixels as rows of a matrix: row p holds, tap by tap, the channels of group `group` below pixel p's
// window. G is the geometry: in_height, in_width, in_channels, group_in (channels of a group), out_height, out_width, pixels,
// kernel_*, stride_*, pad_*, dilation_*, has_padding, zero_point (what lies outside), vector (bytes of one copy, which divide the
// channels; 1 gathers bytes), rows (of the tile) and offset (of the tile in a stage).
//
// A thread copies one chunk of 16 bytes of every `pass`-th row: which tap a chunk belongs to is worked out once for all of its rows.
// Rows behind the last pixel repeat that one. Behind the last tap stand zeros.
template <class P, class G, class X>
struct WindowRows {
  static constexpr int V = G::vector, units = 16 / V, words = V < 4 ? 1 : V / 4;
  static constexpr bool asynchronous = P::capability >= 80 && V >= 4;
  static constexpr int chunks = Tile<P>::chunks, threads = Tile<P>::threads, pass = threads / chunks;
  static constexpr int count = (G::rows + pass - 1) / pass;
  static constexpr int inner = G::kernel_height * G::kernel_width * G::group_in;
  static constexpr bool has_rest = inner % P::tile_k != 0;
  static_assert(threads % chunks == 0 && G::group_in % V == 0 && G::kernel_height <= 16 && G::kernel_width <= 16);

  const X* x;
  const int8* outside;  // 16 bytes of the zero point, for asynchronous copies of what lies outside
  int base[count], values[asynchronous ? 1 : count][4];
  unsigned taps[G::has_padding ? count : 1];  // bit r: whether the window's row r is inside; bit 16 + s: its column s

  __device__ __forceinline__ WindowRows(const X* x, const int8* outside, int first_pixel, int group) : x(x), outside(outside) {
#pragma unroll
    for (int i = 0; i < count; i++) {
      int pixel = minimum(first_pixel + row(i), G::pixels - 1);
      int column = pixel % G::out_width, line = pixel / G::out_width % G::out_height, image = pixel / G::out_width / G::out_height;
      int top = line * G::stride_height - G::pad_top, left = column * G::stride_width - G::pad_left;
      base[i] = ((image * G::in_height + top) * G::in_width + left) * G::in_channels + group * G::group_in;
      if constexpr (G::has_padding) {
        taps[i] = 0;
#pragma unroll
        for (int r = 0; r < G::kernel_height; r++)
          if (unsigned(top + r * G::dilation_height) < unsigned(G::in_height)) taps[i] |= 1u << r;
#pragma unroll
        for (int s = 0; s < G::kernel_width; s++)
          if (unsigned(left + s * G::dilation_width) < unsigned(G::in_width)) taps[i] |= 0x10000u << s;
      }
    }
  }

  __device__ __forceinline__ static int chunk() { return threadIdx.x % chunks; }
  __device__ __forceinline__ static int row(int i) { return threadIdx.x / chunks + i * pass; }
  __device__ __forceinline__ static bool has(int i) { return G::rows % pass == 0 || row(i) < G::rows; }
  __device__ __forceinline__ static unsigned at(int i) { return G::offset + swizzled<P::tile_k>(row(i), chunk()); }

  // Where a unit of V bytes of tile `number` comes from: from the pixel's base on, and the tap's bits in `taps`.
  struct Unit {
    int offset;
    unsigned tap;
    bool is_rest;  // behind the last tap
  };
  __device__ __forceinline__ static Unit unit(int number, int u) {
    int tap, channel;
    if constexpr (G::group_in % P::tile_k == 0) {  // all of a tile belongs to one tap
      constexpr int tiles = G::group_in / P::tile_k;
      tap = number / tiles;
      channel = number % tiles * P::tile_k + chunk() * 16 + u * V;
    } else {
      int k = number * P::tile_k + chunk() * 16 + u * V;
      tap = G::kernel_height * G::kernel_width == 1 ? 0 : k / G::group_in;
      channel = k - tap * G::group_in;
    }
    int r = tap / G::kernel_width, s = tap % G::kernel_width;
    int offset = (r * G::dilation_height * G::in_width + s * G::dilation_width) * G::in_channels + channel;
    bool is_rest = has_rest && number * P::tile_k + chunk() * 16 + u * V >= inner;
    return {offset, 1u << r | 0x10000u << s, is_rest};
  }
  __device__ __forceinline__ bool inside(int i, const Unit& unit) const {
    return !G::has_padding || (taps[G::has_padding ? i : 0] & unit.tap) == unit.tap;
  }

  __device__ __forceinline__ void issue(int number, unsigned stage) const {
#pragma unroll
    for (int u = 0; u < units; u++) {
      Unit from = unit(number, u);
#pragma unroll
      for (int i = 0; i < count; i++) {
        if (!has(i)) continue;
        const void* source = x + (base[i] + from.offset);
        bool taken = inside(i, from);
        if constexpr (G::has_padding && G::zero_point != 0) {
          copy_async<V>(stage + at(i) + u * V, taken || from.is_rest ? source : outside, from.is_rest);
        } else {
          copy_async<V>(stage + at(i) + u * V, source, from.is_rest || !taken);
        }
      }
    }
  }

  __device__ __forceinline__ void load(int number) {
    constexpr int padding = packed(G::zero_point, G::zero_point, G::zero_point, G::zero_point);
#pragma unroll
    for (int u = 0; u < units; u++) {
      Unit from = unit(number, u);
#pragma unroll
      for (int i = 0; i < count; i++) {
        bool taken = has(i) && !from.is_rest && inside(i, from);
        if constexpr (V == 1) {
          if (u % 4 == 0) values[i][u / 4] = 0;
          int value = taken ? x[base[i] + from.offset] : from.is_rest ? 0 : G::zero_point;
          values[i][u / 4] |= int((value & 255u) << u % 4 * 8);
        } else {
          int* to = values[i] + u * words;
#pragma unroll
          for (int w = 0; w < words; w++) to[w] = from.is_rest ? 0 : padding;
          if (taken) load_words<V < 4 ? 4 : V>(to, x + (base[i] + from.offset));
        }
      }
    }
  }

  __device__ __forceinline__ void store(unsigned stage) const {
#pragma unroll
    for (int i = 0; i < count; i++)
      if (has(i)) store_shared<4>(stage + at(i), values[i]);
  }
};

}  // namespace octavo
