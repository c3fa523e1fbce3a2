// Up to four tensors joined along an axis, each changed to the result's parameters: one launch for all.
#pragma once
#include "change.cuh"

namespace octavo {

// What `Change` reads of one part, and where it lies: `length` elements of each run of the result, from `first` on.
template <class P, int part>
struct PartOf;

#define OCTAVO_PART(part)                                                                                                   \
  template <class P>                                                                                                        \
  struct PartOf<P, part> {                                                                                                  \
    using X = typename P::X##part;                                                                                          \
    using Y = typename P::Y;                                                                                                \
    static constexpr int change = P::change_##part, change_from = P::change_from_##part, change_to = P::change_to_##part;   \
    static constexpr int change_low = P::change_low_##part, change_high = P::change_high_##part;                            \
    static constexpr long long length = P::length_##part, first = P::first_##part;                                          \
    static __device__ __forceinline__ float change_multiplier() { return P::change_multiplier_##part(); }                   \
  };
OCTAVO_PART(0)
OCTAVO_PART(1)
OCTAVO_PART(2)
OCTAVO_PART(3)

template <class P, int part, class X>
__device__ __forceinline__ void copy_part(const X* x, typename P::Y* y) {
  using Part = PartOf<P, part>;
  constexpr int N = P::elements_of_thread;
  constexpr long long items = P::outer * Part::length;
  long long first = ((long long)blockIdx.x * P::threads + threadIdx.x) * N;
  if (first >= items) return;
  Change<Part> changed{nullptr};
  Neighbours<X, N> read;
  Neighbours<typename P::Y, N> result;
  read.load(x + first);
#pragma unroll
  for (int i = 0; i < N; i++) result.set(i, changed.of(read.get(i)));
  result.store(y + first / Part::length * P::pitch + first % Part::length + Part::first);
}

// x0 to x3: [outer, length] each, of which P has `parts`; y: [outer, pitch]. A row of blocks takes one part.
template <class P>
__device__ __forceinline__ void concat(const typename P::X0* x0, const typename P::X1* x1, const typename P::X2* x2,
                                       const typename P::X3* x3, typename P::Y* y) {
  if (blockIdx.y == 0) copy_part<P, 0>(x0, y);
  if (P::parts > 1 && blockIdx.y == 1) copy_part<P, 1>(x1, y);
  if (P::parts > 2 && blockIdx.y == 2) copy_part<P, 2>(x2, y);
  if (P::parts > 3 && blockIdx.y == 3) copy_part<P, 3>(x3, y);
}

}  // namespace octavo
