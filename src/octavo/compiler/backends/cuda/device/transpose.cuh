// The axes of a tensor in another order: one element to a thread, in the order of the result.
#pragma once
#include "base.cuh"

namespace octavo {

template <class P>
__device__ __forceinline__ void transpose(const typename P::X* x, typename P::X* y) {
  long long item = (long long)blockIdx.x * P::threads + threadIdx.x;
  if (item >= P::items) return;
  constexpr int sizes[6] = {P::size0, P::size1, P::size2, P::size3, P::size4, P::size5};
  constexpr long long steps[6] = {P::step0, P::step1, P::step2, P::step3, P::step4, P::step5};
  long long rest = item, at = 0;
#pragma unroll
  for (int axis = 5; axis >= 0; axis--) {
    at += rest % sizes[axis] * steps[axis];
    rest /= sizes[axis];
  }
  y[item] = x[at];
}

}  // namespace octavo
