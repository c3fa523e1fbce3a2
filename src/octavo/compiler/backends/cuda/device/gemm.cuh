// Products of int8 matrices by tiles in shared memory: what convolutions and products of matrices share. A block computes tile_m rows
// by tile_n columns, tile_k deep at a time; sources fill the tiles, a core multiplies them, `finish` writes results.
#pragma once
#include "dot.cuh"
#include "epilogue.cuh"
#include "mma.cuh"
#include "wgmma.cuh"

namespace octavo {

template <class P>
struct Tile {
  static constexpr int threads = 32 * P::warps_m * P::warps_n;
  static constexpr int chunks = P::tile_k / 16;  // of 16 bytes in a row
  static constexpr int bytes_a = P::tile_m * P::tile_k, bytes_b = P::tile_n * P::tile_k, stage = bytes_a + bytes_b;
};

// Where chunk `chunk` of row `row` of a tile lies. Eight rows' chunks of one number, and eight neighbours, lie in different banks.
template <int tile_k>
__device__ __forceinline__ constexpr int swizzled(int row, int chunk) {
  constexpr int chunks = tile_k / 16;
  return row * tile_k + (chunk ^ row * chunks / 8 % chunks) * 16;
}

// Tensor cores: each warp multiplies its part of the tile. `a` holds the left rows of X, `b` the right columns of W as rows.
// A lane's results: `rows` rows, of each `spans` runs of `span` neighbouring columns; columns lie in the tile in an order that makes
// them neighbours (`lying_columns` in kernels/gemm.py).
template <class P>
struct MatrixCore {
  static constexpr int warp_m = P::tile_m / P::warps_m, warp_n = P::tile_n / P::warps_n;
  static constexpr int tiles_m = warp_m / 16, tiles_n = warp_n / 8, depth = P::tile_k / 32;
  static constexpr int span = P::span, rows = 2 * tiles_m, spans = warp_n / (4 * span), stages_read = 0;
  static constexpr int row_tiles = P::has_row_sums ? tiles_m : 1, column_tiles = P::has_column_sums ? tiles_n : 1;
  int sums[tiles_m][tiles_n][4], sums_of_rows[row_tiles][4], sums_of_columns[column_tiles][4];
  int lane, first_row, first_column;
  unsigned at_a[depth], at_b[depth];

  __device__ __forceinline__ MatrixCore() {
    int warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    first_row = warp % P::warps_m * warp_m;
    first_column = warp / P::warps_m * warp_n;
#pragma unroll
    for (int k = 0; k < depth; k++) {
      at_a[k] = swizzled<P::tile_k>(first_row + lane % 16, 2 * k + lane / 16);
      at_b[k] = swizzled<P::tile_k>(first_column + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2) + Tile<P>::bytes_a;
    }
#pragma unroll
    for (auto& tile : sums_of_rows) tile[0] = tile[1] = tile[2] = tile[3] = 0;
#pragma unroll
    for (auto& tile : sums_of_columns) tile[0] = tile[1] = tile[2] = tile[3] = 0;
  }

  __device__ __forceinline__ int& value(int row, int span_number, int i) {
    return sums[row / 2][span_number * (span / 2) + i / 2][row % 2 * 2 + i % 2];
  }
  __device__ __forceinline__ int row_sum(int row) const { return sums_of_rows[row / 2][row % 2 * 2]; }
  __device__ __forceinline__ int column_sum(int span_number, int i) const {
    return sums_of_columns[span_number * (span / 2) + i / 2][i % 2];
  }
  __device__ __forceinline__ int row(int number) const { return first_row + number / 2 * 16 + number % 2 * 8 + lane / 4; }
  __device__ __forceinline__ int column(int span_number) const {
    return first_column + span_number * 4 * span + lane % 4 * span;
  }

  __device__ __forceinline__ void publish() {}
  __device__ __forceinline__ void complete() {}
  __device__ __forceinline__ void multiply(unsigned stage) {
    using X = typename P::X;
    using W = typename P::W;
#pragma unroll
    for (int k = 0; k < depth; k++) {
      int a[tiles_m][4], b[tiles_n][2];
#pragma unroll
      for (int i = 0; i < tiles_m; i++) load_matrices<4>(a[i], stage + at_a[k] + i * 16 * P::tile_k);
#pragma unroll
      for (int j = 0; j < tiles_n; j += 2) load_matrices<4>(b[j], stage + at_b[k] + j * 8 * P::tile_k);
#pragma unroll
      for (int i = 0; i < tiles_m; i++)
#pragma unroll
        for (int j = 0; j < tiles_n; j++) multiply_16x8x32<P::capability, X, W>(sums[i][j], a[i], b[j]);
      constexpr int ones[4] = {0x01010101, 0x01010101, 0x01010101, 0x01010101};
      if constexpr (P::has_row_sums) {
#pragma unroll
        for (int i = 0; i < tiles_m; i++) multiply_16x8x32<P::capability, X, W>(sums_of_rows[i], a[i], ones);
      }
      if constexpr (P::has_column_sums) {
#pragma unroll
        for (int j = 0; j < tiles_n; j++) multiply_16x8x32<P::capability, X, W>(sums_of_columns[j], ones, b[j]);
      }
    }
  }
};

// Dot products of four integers, for chips without tensor cores: a lane has every fourth row and every eighth column of its warp's.
template <class P>
struct DotCore {
  static constexpr int warp_m = P::tile_m / P::warps_m, warp_n = P::tile_n / P::warps_n;
  static constexpr int rows = warp_m / 4, columns = warp_n / 8, span = P::span, spans = columns / span, stages_read = 0;
  int sums[rows][columns], sums_of_rows[P::has_row_sums ? rows : 1], sums_of_columns[P::has_column_sums ? columns : 1];
  int lane, first_row, first_column;

  __device__ __forceinline__ DotCore() {
    int warp = threadIdx.x / 32;
    lane = threadIdx.x % 32;
    first_row = warp % P::warps_m * warp_m;
    first_column = warp / P::warps_m * warp_n;
#pragma unroll
    for (auto& sum : sums_of_rows) sum = 0;
#pragma unroll
    for (auto& sum : sums_of_columns) sum = 0;
  }

  __device__ __forceinline__ int& value(int row, int span_number, int i) { return sums[row][span_number * span + i]; }
  __device__ __forceinline__ int row_sum(int row) const { return sums_of_rows[row]; }
  __device__ __forceinline__ int column_sum(int span_number, int i) const { return sums_of_columns[span_number * span + i]; }
  __device__ __forceinline__ int row(int number) const { return first_row + number * 4 + lane / 8; }
  __device__ __forceinline__ int column(int span_number) const {
    return first_column + span_number * 8 * span + lane % 8 * span;
  }

  __device__ __forceinline__ void publish() {}
  __device__ __forceinline__ void complete() {}
  __device__ __forceinline__ void multiply(unsigned stage) {
    constexpr int ones = 0x01010101;
#pragma unroll 1
    for (int chunk = 0; chunk < Tile<P>::chunks; chunk++) {
      int b[columns][4];
#pragma unroll
      for (int j = 0; j < columns; j++)
        load_shared(b[j], stage + Tile<P>::bytes_a + swizzled<P::tile_k>(first_column + j * 8 + lane % 8, chunk));
#pragma unroll
      for (int i = 0; i < rows; i++) {
        int a[4];
        load_shared(a, stage + swizzled<P::tile_k>(row(i), chunk));
#pragma unroll
        for (int word = 0; word < 4; word++) {
#pragma unroll
          for (int j = 0; j < columns; j++) sums[i][j] = dot4<typename P::X, typename P::W>(a[word], b[j][word], sums[i][j]);
          if constexpr (P::has_row_sums) sums_of_rows[i] = dot4<typename P::X, int8>(a[word], ones, sums_of_rows[i]);
        }
      }
      if constexpr (P::has_column_sums) {
#pragma unroll
        for (int j = 0; j < columns; j++)
#pragma unroll
          for (int word = 0; word < 4; word++)
            sums_of_columns[j] = dot4<typename P::W, int8>(b[j][word], ones, sums_of_columns[j]);
      }
    }
  }
};

// Four warps together: a group of them multiplies slabs of 64 rows by its 128 columns. A tile's products are on their way while those
// of the next one are issued, so that the stage they read is filled one turn later.
template <class P>
struct WarpGroupCore {
  static constexpr int groups_m = P::warps_m / 4, group_m = P::tile_m / groups_m, group_n = P::tile_n / P::warps_n;
  static constexpr int slabs = group_m / 64, span = P::span, rows = 2 * slabs, spans = group_n / (4 * span), stages_read = 1;
  static_assert(group_n == 128 && group_m % 64 == 0 && !P::has_row_sums && !P::has_column_sums);
  int sums[slabs][16][4];
  int lane, first_row, first_column;
  PendingProducts pending;

  __device__ __forceinline__ WarpGroupCore() {
    lane = threadIdx.x % 32;
    first_row = threadIdx.x / 128 % groups_m * group_m;
    first_column = threadIdx.x / 128 / groups_m * group_n;
  }

  __device__ __forceinline__ int& value(int row, int span_number, int i) {
    return sums[row / 2][span_number * (span / 2) + i / 2][row % 2 * 2 + i % 2];
  }
  __device__ __forceinline__ int row_sum(int) const { return 0; }
  __device__ __forceinline__ int column_sum(int, int) const { return 0; }
  __device__ __forceinline__ int row(int number) const {
    return first_row + number / 2 * 64 + threadIdx.x / 32 % 4 * 16 + number % 2 * 8 + lane / 4;
  }
  __device__ __forceinline__ int column(int span_number) const {
    return first_column + span_number * 4 * span + lane % 4 * span;
  }

  __device__ __forceinline__ void publish() { publish_to_products(); }
  __device__ __forceinline__ void multiply(unsigned stage) {
    unsigned a = stage + first_row * P::tile_k, b = stage + Tile<P>::bytes_a + first_column * P::tile_k;
    begin_products();
#pragma unroll
    for (int k = 0; k < P::tile_k; k += 32)
#pragma unroll
      for (int i = 0; i < slabs; i++)
        issue_64x128x32<typename P::X, typename P::W>(sums[i], matrix_descriptor<P::tile_k>(a + i * 64 * P::tile_k + k),
                                                      matrix_descriptor<P::tile_k>(b + k), pending);
    commit_products(pending);
    wait_products<1, typename P::X, typename P::W>(pending);
  }
  __device__ __forceinline__ void complete() { wait_products<0, typename P::X, typename P::W>(pending); }
};

template <class P, int kind>
struct CoreOf {
  using type = MatrixCore<P>;
};
template <class P>
struct CoreOf<P, 0> {
  using type = DotCore<P>;
};
template <class P>
struct CoreOf<P, 2> {
  using type = WarpGroupCore<P>;
};
template <class P>
using Core = typename CoreOf<P, P::capability < 75 ? 0 : P::warp_groups ? 2 : 1>::type;

// A matrix of constants that lies as the tiles do, one behind the other: packed by kernels/gemm.py.
template <class P>
struct PackedTiles {
  static constexpr bool asynchronous = P::capability >= 80;
  static constexpr int copies = Tile<P>::bytes_b / 16, of_thread = (copies + Tile<P>::threads - 1) / Tile<P>::threads;
  const int8* from;
  int values[asynchronous ? 1 : of_thread][4];

  __device__ __forceinline__ bool has(int i) const {
    return copies % Tile<P>::threads == 0 || threadIdx.x + i * Tile<P>::threads < copies;
  }
  __device__ __forceinline__ void issue(int number, unsigned stage) const {
    const int8* tile = from + (long long)number * Tile<P>::bytes_b + threadIdx.x * 16;
    unsigned to = stage + Tile<P>::bytes_a + threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < of_thread; i++)
      if (has(i)) copy_async<16>(to + i * Tile<P>::threads * 16, tile + i * Tile<P>::threads * 16);
  }
  __device__ __forceinline__ void load(int number) {
    const int8* tile = from + (long long)number * Tile<P>::bytes_b + threadIdx.x * 16;
#pragma unroll
    for (int i = 0; i < of_thread; i++)
      if (has(i)) load_words<16>(values[i], tile + i * Tile<P>::threads * 16);
  }
  __device__ __forceinline__ void store(unsigned stage) const {
#pragma unroll
    for (int i = 0; i < of_thread; i++)
      if (has(i)) store_shared<4>(stage + Tile<P>::bytes_a + (threadIdx.x + i * Tile<P>::threads) * 16, values[i]);
  }
};

// Multiplies tiles first to last - 1 of two sources. Asynchronous ones are issued stages - 1 tiles ahead, others are loaded into
// registers while the tile before them is multiplied. The barrier at the top of a turn both publishes this turn's tiles and ends
// every read of the stage that is filled next; a core that reads `stages_read` stages beyond its turn has so many fewer on their way.
template <class P, class A, class B>
__device__ __forceinline__ void multiply_tiles(A& a, B& b, Core<P>& core, int first, int last) {
  constexpr int stages = P::stages, ahead = stages - 1 - Core<P>::stages_read;
  static_assert(ahead > 0 && (Core<P>::stages_read == 0 || stages > 2));
  constexpr bool asynchronous = A::asynchronous || B::asynchronous;
  unsigned begin = shared_begin();
  auto issue = [&](int number, int stage) {
    if constexpr (A::asynchronous) a.issue(number, begin + stage * Tile<P>::stage);
    if constexpr (B::asynchronous) b.issue(number, begin + stage * Tile<P>::stage);
  };
  auto load = [&](int number) {
    if constexpr (!A::asynchronous) a.load(number);
    if constexpr (!B::asynchronous) b.load(number);
  };
  auto store = [&](int stage) {
    if constexpr (!A::asynchronous) a.store(begin + stage * Tile<P>::stage);
    if constexpr (!B::asynchronous) b.store(begin + stage * Tile<P>::stage);
  };
  load(first);
  if constexpr (asynchronous) {
#pragma unroll
    for (int i = 0; i < ahead; i++) {
      if (first + i < last) issue(first + i, i);
      commit_copies();
    }
  }
  store(0);
  int stage = 0, filled = ahead;
#pragma unroll 1
  for (int number = first; number < last; number++) {
    if constexpr (asynchronous) wait_copies<ahead - 1>();
    core.publish();
    __syncthreads();
    if constexpr (asynchronous) {
      if (number + ahead < last) issue(number + ahead, filled);
      commit_copies();
      filled = filled + 1 == stages ? 0 : filled + 1;
    }
    if (number + 1 < last) load(number + 1);
    core.multiply(begin + stage * Tile<P>::stage);
    stage = stage + 1 == stages ? 0 : stage + 1;
    if (number + 1 < last) store(stage);
  }
  core.complete();
}

// Writes `count` results at once; `to` is a multiple of their size.
template <int count, class Y>
__device__ __forceinline__ void store_results(Y* to, const Y* from) {
  if constexpr (sizeof(Y) == 1 && count >= 4) {
    Vector<int, count / 4> words;
#pragma unroll
    for (int i = 0; i < count / 4; i++) words.values[i] = packed(from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]);
    *reinterpret_cast<Vector<int, count / 4>*>(to) = words;
  } else {
    Vector<Y, count> values;
#pragma unroll
    for (int i = 0; i < count; i++) values.values[i] = from[i];
    *reinterpret_cast<Vector<Y, count>*>(to) = values;
  }
}

// Reads a run of `count` constants, which lies at a multiple of 16 bytes or of its size.
template <int count, class T>
__device__ __forceinline__ void load_run(T* to, const T* from) {
  constexpr int step = count < 4 ? count : 4;
#pragma unroll
  for (int i = 0; i < count; i += step) {
    auto part = *reinterpret_cast<const Vector<T, step>*>(from + i);
#pragma unroll
    for (int j = 0; j < step; j++) to[i + j] = part.values[j];
  }
}

template <int count, class T>
__device__ __forceinline__ void load_constants(T (&to)[count], const T* from) {
  load_run<count>(to, from);
}

// Starts every sum of a column from that column's bias. `bias` begins at the tile's first column.
template <class P>
__device__ __forceinline__ void start_sums(Core<P>& core, const int* bias) {
  using C = Core<P>;
#pragma unroll
  for (int s = 0; s < C::spans; s++) {
    int from[C::span];
    load_constants(from, bias + core.column(s));
#pragma unroll
    for (int i = 0; i < C::rows; i++)
#pragma unroll
      for (int v = 0; v < C::span; v++) core.value(i, s, v) = from[v];
  }
}

template <class P>
__device__ __forceinline__ void zero_sums(Core<P>& core) {
  using C = Core<P>;
#pragma unroll
  for (int s = 0; s < C::spans; s++)
#pragma unroll
    for (int i = 0; i < C::rows; i++)
#pragma unroll
      for (int v = 0; v < C::span; v++) core.value(i, s, v) = 0;
}

// Where a tile's results go: row r, column c to y + r * pitch + c, of `rows` rows and `columns` columns that are there. The tensor
// that a tail reads lies in the same way.
template <class P>
struct Results {
  typename P::Y* y;
  const typename P::Beside* beside;
  const unsigned char* tables;
  int pitch, rows, columns;
};

// What a tail reads beside a lane's run of columns, `store` at once.
template <class P>
struct BesideColumns {
  static constexpr int runs = Tail<P>::reads ? P::span / P::store : 0;
  BesideRun<typename P::Beside, P::store> read[runs ? runs : 1];

  __device__ __forceinline__ void load(const Results<P>& results, int row, int column) {
    const typename P::Beside* from = results.beside + ((long long)row * results.pitch + column);
#pragma unroll
    for (int i = 0; i < runs; i++)
      if (row < results.rows && column + i * P::store < results.columns) read[i].load(from + i * P::store);
  }
  __device__ __forceinline__ int get(int v) const { return runs ? int(read[v / P::store].get(v % P::store)) : 0; }
};

// Writes the tile's results: constants begin at the tile's first column. P::store columns are written at once; P::columns is a
// multiple of that. What a tail reads is on its way for all rows of a lane at once, where it comes in words.
template <class P>
__device__ __forceinline__ void finish(Core<P>& core, const float* multiplier, const float* real_bias, const int* zero_point,
                                       const Results<P>& results) {
  using C = Core<P>;
  using Y = typename P::Y;
  constexpr bool loads_all = Tail<P>::reads && P::store * sizeof(typename P::Beside) >= 4;
#pragma unroll
  for (int s = 0; s < C::spans; s++) {
    int column = core.column(s);
    float factors[C::span], reals[P::real_rows * C::span];
    int points[C::span];
    if constexpr (P::result != SUMS) load_constants(factors, multiplier + column);
    if constexpr (P::has_real_bias || P::result == FUSED_FLOATS || P::result == STEPWISE_FLOATS || P::result == FUNCTIONS) {
#pragma unroll
      for (int i = 0; i < P::real_rows; i++) load_run<C::span>(reals + i * C::span, real_bias + (i * P::real_stride + column));
    }
    if constexpr (P::has_row_sums) load_constants(points, zero_point + column);
    Epilogue<P> epilogue{factors, reals, {results.tables}, C::span};
    BesideColumns<P> beside[loads_all ? C::rows : 1];
    if constexpr (loads_all) {
#pragma unroll
      for (int i = 0; i < C::rows; i++) beside[i].load(results, core.row(i), column);
    }
#pragma unroll
    for (int i = 0; i < C::rows; i++) {
      int row = core.row(i);
      if (row >= results.rows) continue;
      if constexpr (Tail<P>::reads && !loads_all) beside[0].load(results, row, column);
      Y values[C::span];
#pragma unroll
      for (int v = 0; v < C::span; v++) {
        int sum = core.value(i, s, v);
        if constexpr (P::has_row_sums) sum -= points[v] * core.row_sum(i);
        if constexpr (P::has_column_sums) sum -= P::x_zero_point * core.column_sum(s, v);
        values[v] = epilogue.template of<Y>(sum, v, beside[loads_all ? i : 0].get(v));
      }
      Y* to = results.y + (long long)row * results.pitch + column;
#pragma unroll
      for (int v = 0; v < C::span; v += P::store)
        if (column + v < results.columns) store_results<P::store>(to + v, values + v);
    }
  }
}

}  // namespace octavo
