// Products of two variable matrices, for each of several batches, both zero points at will.
#pragma once
#include "rows.cuh"

namespace octavo {

template <class P>
struct LeftRows : PlainRows<P::result_rows, P::depth, P::a_pitch, P::a_vector> {
  static constexpr int rows = P::tile_m, offset = 0;
  __device__ __forceinline__ static constexpr int lying_row(int row) { return row; }
};

template <class P>
struct RightRows : PlainRows<P::result_columns, P::depth, P::b_pitch, P::b_vector> {
  static constexpr int rows = P::tile_n, offset = Tile<P>::bytes_a;
  __device__ __forceinline__ static int lying_row(int row) { return LyingColumns<P>::column(row); }
};

// Batch `number` of four axes: where its matrices begin.
template <class P>
__device__ __forceinline__ void batch_begins(int number, long long& a, long long& b) {
  constexpr int sizes[4] = {P::batch0, P::batch1, P::batch2, P::batch3};
  constexpr long long a_steps[4] = {P::a_step0, P::a_step1, P::a_step2, P::a_step3};
  constexpr long long b_steps[4] = {P::b_step0, P::b_step1, P::b_step2, P::b_step3};
  a = b = 0;
#pragma unroll
  for (int axis = 3; axis >= 0; axis--) {
    a += number % sizes[axis] * a_steps[axis];
    b += number % sizes[axis] * b_steps[axis];
    number /= sizes[axis];
  }
}

// y[batch, rows, columns] of a[batch, rows, depth] and b, of which each column (b_is_transposed) or each row lies dense. Constants lie
// as [columns up to whole tiles]: bias is what sums start from, zero_point that of b. The grid: (tiles_m, tiles_n, batches). beside,
// tables: as Tail<P> reads them, beside as y lies.
template <class P>
__device__ __forceinline__ void batch_matmul_gemm(const typename P::X* a, const typename P::W* b, const int* bias,
                                                  const float* multiplier, const float* real_bias, const int* zero_point,
                                                  const typename P::Beside* beside, const unsigned char* tables, typename P::Y* y) {
  constexpr int tiles_k = (P::depth + P::tile_k - 1) / P::tile_k;
  int first_row = blockIdx.x * P::tile_m, first_column = blockIdx.y * P::tile_n;
  long long a_begin, b_begin;
  batch_begins<P>(blockIdx.z, a_begin, b_begin);
  WindowRows<P, LeftRows<P>, typename P::X> rows(a + a_begin, nullptr, first_row, 0);
  Core<P> core;
  start_sums<P>(core, bias + first_column);
  if constexpr (P::b_is_transposed) {
    WindowRows<P, RightRows<P>, typename P::W> columns(b + b_begin, nullptr, first_column, 0);
    multiply_tiles<P>(rows, columns, core, 0, tiles_k);
  } else {
    TransposedColumns<P, P::depth, P::result_columns, P::b_pitch, P::b_vector> columns{b + b_begin, first_column};
    multiply_tiles<P>(rows, columns, core, 0, tiles_k);
  }
  long long at = ((long long)blockIdx.z * P::result_rows + first_row) * P::result_columns + first_column;
  finish<P>(core, multiplier + first_column, real_bias + first_column, zero_point + first_column,
            Results<P>{y + at, beside + at, tables, P::result_columns, P::result_rows - first_row, P::result_columns - first_column});
}

}  // namespace octavo
