// Elements of one axis by indices that are known at run time: x [outer, extent, inner], y [outer, count, inner].
#pragma once
#include "change.cuh"

namespace octavo {

template <class P>
__device__ __forceinline__ void take(const typename P::X* x, const typename P::I* indices, const typename P::Y* table,
                                     typename P::Y* y) {
  constexpr int N = P::elements_of_thread, steps = P::inner / N;
  long long item = (long long)blockIdx.x * P::threads + threadIdx.x;
  if (item >= P::items) return;
  long long row = item / steps;
  int at = int(item % steps) * N;
  auto wanted = indices[row % P::count];
  long long index = wanted < 0 ? 0 : wanted >= P::extent ? P::extent - 1 : (long long)wanted;
  Neighbours<typename P::X, N> read;
  read.load(x + (row / P::count * P::extent + index) * P::inner + at);
  Change<P> changed{table};
  Neighbours<typename P::Y, N> result;
#pragma unroll
  for (int i = 0; i < N; i++) result.set(i, changed.of(read.get(i)));
  result.store(y + row * P::inner + at);
}

}  // namespace octavo
