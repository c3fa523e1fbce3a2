// Integers of one tensor as those of another: its scale, zero point and bounds. P is the structure of a kernel's parameters.
#pragma once
#include "neighbours.cuh"

namespace octavo {

// What becomes of an integer; numbers as `kernels/change.py` writes them.
enum ChangeKind { KEPT = 0, SHIFTED = 1, SCALED = 2, LOOKED_UP = 3 };

// The integer of parameters Y for one of parameters X: as it is; moved and clamped; as numerics.requantize_tensor has it; or by
// a table, whose first entry is that of the least integer.
template <class P>
struct Change {
  const typename P::Y* table;

  __device__ __forceinline__ typename P::Y of(typename P::X q) const {
    using Y = typename P::Y;
    if constexpr (P::change == KEPT) {
      return Y(q);
    } else if constexpr (P::change == SHIFTED) {
      return Y(clamped(int(q) - P::change_from + P::change_to, P::change_low, P::change_high));
    } else if constexpr (P::change == SCALED) {
      return Y(requantized(int(q) - P::change_from, P::change_multiplier(), P::change_to, P::change_low, P::change_high));
    } else {
      return table[int(q) + (is_signed<typename P::X>::value ? 128 : 0)];
    }
  }
};

// x: items; y: as many, each changed.
template <class P>
__device__ __forceinline__ void change(const typename P::X* x, const typename P::Y* table, typename P::Y* y) {
  constexpr int N = P::elements_of_thread;
  long long first = ((long long)blockIdx.x * P::threads + threadIdx.x) * N;
  if (first >= P::items) return;
  Change<P> changed{table};
  if (N == 1 || first + N <= P::items) {
    Neighbours<typename P::X, N> read;
    Neighbours<typename P::Y, N> result;
    read.load(x + first);
#pragma unroll
    for (int i = 0; i < N; i++) result.set(i, changed.of(read.get(i)));
    result.store(y + first);
  } else {
    for (long long i = first; i < P::items; i++) y[i] = changed.of(x[i]);
  }
}

}  // namespace octavo
