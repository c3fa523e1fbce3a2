// Sources that fill tiles of a product's rows: pixels of a convolution, and plain matrices.
#pragma once
#include "gemm.cuh"

namespace octavo {

// The windows of a convolution's pixels as rows of a matrix: row p holds, tap by tap, the channels of group `group` below pixel p's
// window. G is the geometry: in_height, in_width, in_channels, group_in (channels of a group), out_height, out_width, pixels,
// kernel_*, stride_*, pad_*, dilation_*, has_padding, zero_point (what lies outside), vector (bytes of one copy, which divide the
// channels; 1 gathers bytes), rows (of the tile), offset (of the tile in a stage) and lying_row (which row lies as a row of the tile).
//
// Gathered bytes lie run by run: what is contiguous below a window (a row of its taps, or one tap's channels where groups or dilation
// part them), zeros up to whole chunks behind each. So a chunk's bytes are neighbours in memory.
//
// A thread copies one chunk of 16 bytes of every `pass`-th row: which tap a chunk belongs to is worked out once for all of its rows.
// Rows behind the last pixel repeat that one. Behind the last tap stand zeros.
template <class P, class G, class X>
struct WindowRows {
  static constexpr int V = G::vector, units = 16 / V, words = V < 4 ? 1 : V / 4;
  static constexpr bool asynchronous = P::capability >= 80 && V >= 4;
  static constexpr int chunks = Tile<P>::chunks, threads = Tile<P>::threads, pass = threads / chunks;
  static constexpr int count = (G::rows + pass - 1) / pass;
  static constexpr int run_taps = G::dilation_width == 1 && G::group_in == G::in_channels ? G::kernel_width : 1;
  static constexpr int run = run_taps * G::group_in, run_chunks = (run + 15) / 16, runs_of_row = G::kernel_width / run_taps;
  static constexpr int inner = V == 1 ? G::kernel_height * runs_of_row * run_chunks * 16 : G::kernel_height * G::kernel_width * G::group_in;
  static constexpr bool has_rest = inner % P::tile_k != 0;
  static_assert(threads % chunks == 0 && G::group_in % V == 0 && G::kernel_height <= 16 && G::kernel_width <= 16);

  const X* x;
  const int8* outside;  // 16 bytes of the zero point, for asynchronous copies of what lies outside
  int base[count], values[asynchronous ? 1 : count][4];
  int left[G::has_padding ? count : 1];  // of the window's columns
  unsigned taps[G::has_padding ? count : 1];  // bit r: whether the window's row r is inside; bit 16 + s: its column s

  __device__ __forceinline__ WindowRows(const X* x, const int8* outside, int first_pixel, int group) : x(x), outside(outside) {
#pragma unroll
    for (int i = 0; i < count; i++) {
      int pixel = minimum(first_pixel + G::lying_row(row(i)), G::pixels - 1);
      int column = pixel % G::out_width;
      int line = pixel / G::out_width % G::out_height, image = pixel / G::out_width / G::out_height;
      int top = line * G::stride_height - G::pad_top, first = column * G::stride_width - G::pad_left;
      base[i] = ((image * G::in_height + top) * G::in_width + first) * G::in_channels + group * G::group_in;
      if constexpr (G::has_padding) {
        left[i] = first;
        taps[i] = 0;
#pragma unroll
        for (int r = 0; r < G::kernel_height; r++)
          if (unsigned(top + r * G::dilation_height) < unsigned(G::in_height)) taps[i] |= 1u << r;
#pragma unroll
        for (int s = 0; s < G::kernel_width; s++)
          if (unsigned(first + s * G::dilation_width) < unsigned(G::in_width)) taps[i] |= 0x10000u << s;
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
    if constexpr (V == 1) {
      gather(number);
    } else {
      load_units(number);
    }
  }

  __device__ __forceinline__ void load_units(int number) {
    constexpr int padding = packed(G::zero_point, G::zero_point, G::zero_point, G::zero_point);
#pragma unroll
    for (int u = 0; u < units; u++) {
      Unit from = unit(number, u);
#pragma unroll
      for (int i = 0; i < count; i++) {
        int* to = values[i] + u * words;
#pragma unroll
        for (int w = 0; w < words; w++) to[w] = from.is_rest ? 0 : padding;
        if (has(i) && !from.is_rest && inside(i, from)) load_words<V < 4 ? 4 : V>(to, x + (base[i] + from.offset));
      }
    }
  }

  // Bytes of a run that are inside the input, from `low` to before `low + size`.
  struct Range {
    int low;
    unsigned size;
  };
  __device__ __forceinline__ Range range(int i, int r, int s) const {
    if constexpr (!G::has_padding) return {0, run};
    int taken = left[G::has_padding ? i : 0] + s * G::dilation_width;
    int low = maximum(-taken, 0), high = minimum(G::in_width - taken, run_taps);
    bool is_row_inside = taps[G::has_padding ? i : 0] >> r & 1;
    return {low * G::group_in, is_row_inside && high > low ? unsigned((high - low) * G::group_in) : 0u};
  }

  __device__ __forceinline__ void gather(int number) {
    int chunk_number = number * chunks + chunk(), run_number = chunk_number / run_chunks, first = chunk_number % run_chunks * 16;
    int r = run_number / runs_of_row, s = run_number % runs_of_row;
    int offset = (r * G::dilation_height * G::in_width + s * G::dilation_width) * G::in_channels + first;
    bool is_rest = has_rest && r >= G::kernel_height;
#pragma unroll
    for (int i = 0; i < count; i++) {
      Range taken = range(i, r, s);
      if (is_rest || !has(i)) taken.size = 0;
      const X* from = x + (base[i] + offset);
#pragma unroll
      for (int j = 0; j < 16; j++) {
        // Behind a run the weights are zeros: its bytes count where they are summed only.
        int value = is_rest || (P::has_row_sums && first + j >= run) ? 0 : G::zero_point;
        if (unsigned(first + j - taken.low) < taken.size) value = from[j];
        values[i][j / 4] = (j % 4 ? values[i][j / 4] : 0) | int((value & 255u) << j % 4 * 8);
      }
    }
  }

  __device__ __forceinline__ void store(unsigned stage) const {
#pragma unroll
    for (int i = 0; i < count; i++)
      if (has(i)) store_shared<4>(stage + at(i), values[i]);
  }
};

// Rows of a matrix that lies row by row, each `pitch` elements behind the one before it, as windows of one tap.
template <int row_count, int depth, int pitch, int bytes>
struct PlainRows {
  static constexpr int in_height = 1, in_width = row_count, in_channels = pitch, group_in = depth, pixels = row_count;
  static constexpr int out_height = 1, out_width = row_count, kernel_height = 1, kernel_width = 1, stride_height = 1, stride_width = 1;
  static constexpr int pad_top = 0, pad_left = 0, dilation_height = 1, dilation_width = 1, zero_point = 0, vector = bytes;
  static constexpr bool has_padding = false;
};

// Rows `row` of B's tile from columns of a result, as `lying_columns` of kernels/gemm.py has them, and back.
template <class P>
struct LyingColumns {
  static constexpr int lanes = P::capability >= 75 ? 4 : 8, pair = 8 / lanes, warp = P::tile_n / P::warps_n, run = lanes * P::span;

  __device__ __forceinline__ static int column(int row) {
    int rest = row % run, number = rest / 8 * pair + rest % pair;
    return row - rest + rest % 8 / pair * P::span + number;
  }
  __device__ __forceinline__ static int row(int column) {
    int rest = column % run, number = rest % P::span;
    return column - rest + number / pair * 8 + rest / P::span * pair + number % pair;
  }
};

// Four columns of four bytes from four rows: word i of the result holds byte i of each.
__device__ __forceinline__ void transpose_bytes(int (&to)[4], int a, int b, int c, int d) {
#ifdef OCTAVO_EMULATED
  for (int i = 0; i < 4; i++) to[i] = packed(a >> 8 * i, b >> 8 * i, c >> 8 * i, d >> 8 * i);
#else
  unsigned low = __byte_perm(a, b, 0x5140), low2 = __byte_perm(c, d, 0x5140);
  unsigned high = __byte_perm(a, b, 0x7362), high2 = __byte_perm(c, d, 0x7362);
  to[0] = __byte_perm(low, low2, 0x5410);
  to[1] = __byte_perm(low, low2, 0x7632);
  to[2] = __byte_perm(high, high2, 0x5410);
  to[3] = __byte_perm(high, high2, 0x7632);
#endif
}

// B's tiles from a matrix whose rows are those of the depth: [depth, columns], rows `pitch` behind each other. A thread transposes 4
// rows by 16 columns. Of a warp, 16 lanes fill a row of the tile with their words; the other 16 take a row in the other banks, by
// taking columns in another order. Reads V bytes at once, which divide the columns, or single ones.
template <class P, int depth, int columns, int pitch, int V>
struct TransposedColumns {
  static constexpr bool asynchronous = false;
  static constexpr int quads = P::tile_k / 4, units = P::tile_n / 16 * quads, of_thread = (units + Tile<P>::threads - 1) / Tile<P>::threads;
  static constexpr int flip = LyingColumns<P>::pair == 2 ? 1 : P::span % 16;
  static_assert(P::tile_k == 64);
  const typename P::W* b;
  int first_column;
  int values[of_thread][4][4];  // four rows of 16 bytes

  __device__ __forceinline__ static int unit(int i) { return threadIdx.x + i * Tile<P>::threads; }
  __device__ __forceinline__ static bool has(int i) { return units % Tile<P>::threads == 0 || unit(i) < units; }

  __device__ __forceinline__ void load(int number) {
#pragma unroll
    for (int i = 0; i < of_thread; i++) {
      int column = first_column + unit(i) / quads * 16, k = number * P::tile_k + unit(i) % quads * 4;
#pragma unroll
      for (int r = 0; r < 4; r++) {
        const typename P::W* from = b + ((long long)(k + r) * pitch + column);
#pragma unroll
        for (int w = 0; w < 4; w++) values[i][r][w] = 0;
#pragma unroll
        for (int v = 0; v < 16; v += V) {
          bool taken = has(i) && k + r < depth && column + v < columns;
          if constexpr (V == 1) {
            values[i][r][v / 4] |= int((taken ? from[v] : 0) & 255u) << v % 4 * 8;
          } else if (taken) {
            load_words<V < 4 ? 4 : V>(values[i][r] + v / 4, from + v);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void store(unsigned stage) const {
#pragma unroll
    for (int i = 0; i < of_thread; i++) {
      if (!has(i)) continue;
      int words[16];
#pragma unroll
      for (int w = 0; w < 4; w++) {
        int four[4];
        transpose_bytes(four, values[i][0][w], values[i][1][w], values[i][2][w], values[i][3][w]);
#pragma unroll
        for (int j = 0; j < 4; j++) words[4 * w + j] = four[j];
      }
      int quad = unit(i) % quads, column = unit(i) / quads * 16;
      bool flipped = unit(i) / quads % 2;
#pragma unroll
      for (int j = 0; j < 16; j++) {
        int row = LyingColumns<P>::row(column + (flipped ? j ^ flip : j));
        int word = flipped ? words[j ^ flip] : words[j];
        store_shared<1>(stage + Tile<P>::bytes_a + swizzled<P::tile_k>(row, quad / 4) + quad % 4 * 4, &word);
      }
    }
  }
};

}  // namespace octavo
