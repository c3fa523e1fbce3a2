// Where an element of a result lies in the tensors that it is made of. P holds sizes and steps as `kernels/axes.py` writes them.
#pragma once
#include "base.cuh"

namespace octavo {

// Sizes and the steps of one tensor, outermost first.
struct Axes {
  long long sizes[6];
  long long steps[6];

  // The place of an element that is `item`-th in the order of the sizes.
  template <class Index>
  __device__ __forceinline__ long long at(Index item) const {
    long long found = 0;
#pragma unroll
    for (int axis = 5; axis > 0; axis--) {
      found += (long long)(item % Index(sizes[axis])) * steps[axis];
      item /= Index(sizes[axis]);
    }
    return found + (long long)item * steps[0];
  }
};

// Numbers of elements: 32 bits where they suffice, whose quotients cost less.
template <bool is_long>
struct index_of {
  using type = unsigned;
};
template <>
struct index_of<true> {
  using type = unsigned long long;
};

#define OCTAVO_AXES(P, tensor)                                                                                              \
  octavo::Axes {                                                                                                            \
    {P::size0, P::size1, P::size2, P::size3, P::size4, P::size5}, {                                                         \
      P::tensor##_step0, P::tensor##_step1, P::tensor##_step2, P::tensor##_step3, P::tensor##_step4, P::tensor##_step5      \
    }                                                                                                                       \
  }

}  // namespace octavo
