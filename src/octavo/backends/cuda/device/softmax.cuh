// Softmax of rows of integers: exponentials from a table, their exact sum, one quotient a row.
#pragma once
#include "row_joins.cuh"

namespace octavo {

// x, y: [rows, columns]; exponentials: of each distance from a row's greatest integer.
template <class P>
__device__ __forceinline__ void softmax(const typename P::X* x, const int* exponentials, typename P::Y* y) {
  constexpr int T = P::threads_of_row;
  int lane = threadIdx.x % T, line = threadIdx.x / T;
  long long row = (long long)blockIdx.x * P::rows_of_block + line;
  bool is_row = row < P::rows;
  const typename P::X* from = x + (is_row ? row : 0) * P::columns;
  int* shared = reinterpret_cast<int*>(shared_memory()) + line * T;
  int greatest = -128;
  for (int i = lane; i < P::columns; i += T) greatest = maximum(greatest, int(from[i]));
  greatest = joined<T>(greatest, shared, lane, Greatest());
  int total = 0;
  for (int i = lane; i < P::columns; i += T) total += exponentials[greatest - int(from[i])];
  total = joined<T>(total, shared, lane, Sum());
  if (!is_row) return;
  float factor = __fdiv_rn(1.0f, __fmul_rn(__int2float_rn(total), P::y_scale()));
  for (int i = lane; i < P::columns; i += T) {
    int result = requantized(exponentials[greatest - int(from[i])], factor, P::zero_point, P::qmin, P::qmax);
    y[row * P::columns + i] = typename P::Y(result);
  }
}

}  // namespace octavo
