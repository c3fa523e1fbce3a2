// Elements of a tensor moved and changed: transpositions, slices, repetitions, padding, parts of a concatenation.
#pragma once
#include "axes.cuh"
#include "change.cuh"

namespace octavo {

// y of the sizes of P, in their order: the place in x along each axis is a multiple of its step, or an entry of `maps` from the
// axis's `map` on, where that is no -1; a negative entry is padding, which is `fill` of x's integers. Elements lie in y in runs of
// `run`, each `pitch` behind the one before, from `y_first` on.
template <class P>
__device__ __forceinline__ void gather(const typename P::X* x, const int* maps, const typename P::Y* table, typename P::Y* y) {
  using X = typename P::X;
  constexpr int N = P::elements_of_thread;
  using Index = typename index_of<(P::items > 0x7fffffffLL)>::type;
  Index first = (Index(blockIdx.x) * P::threads + threadIdx.x) * N;
  if (first >= Index(P::items)) return;
  constexpr Axes axes = OCTAVO_AXES(P, x);
  constexpr int map_of[6] = {P::map0, P::map1, P::map2, P::map3, P::map4, P::map5};
  Index rest = first;
  long long at = P::x_first;
  bool padding = false;
#pragma unroll
  for (int axis = 5; axis >= 0; axis--) {
    Index index = axis == 0 ? rest : rest % Index(axes.sizes[axis]);
    rest /= Index(axes.sizes[axis]);
    if (map_of[axis] >= 0) {
      int entry = maps[map_of[axis] + index];
      padding = padding || entry < 0;
      at += entry;
    } else {
      at += (long long)index * axes.steps[axis];
    }
  }
  Change<P> changed{table};
  Neighbours<X, N> read;
  if (P::has_padding && padding) {
#pragma unroll
    for (int i = 0; i < N; i++) read.set(i, X(P::fill));
  } else {
    read.load(x + at);
  }
  Neighbours<typename P::Y, N> result;
#pragma unroll
  for (int i = 0; i < N; i++) result.set(i, changed.of(read.get(i)));
  if constexpr (P::pitch == 0) {
    result.store(y + P::y_first + first);
  } else {
    result.store(y + P::y_first + (long long)(first / Index(P::run)) * P::pitch + first % Index(P::run));
  }
}

}  // namespace octavo
