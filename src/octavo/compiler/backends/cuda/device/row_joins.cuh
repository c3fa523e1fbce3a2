// What threads of a row find together: each row of a block has `threads` neighbouring ones, a power of two.
#pragma once
#include "base.cuh"

namespace octavo {

struct Greatest {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};
struct Least {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};
struct Sum {
  template <class T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

// What all values of a row's threads join to, in every one of them; `shared` is the row's, of as many elements as threads. Every
// thread of the block takes part.
template <int threads, class T, class Join>
__device__ __forceinline__ T joined(T value, T* shared, int lane, Join join) {
  shared[lane] = value;
  __syncthreads();
#pragma unroll
  for (int half = threads / 2; half > 0; half /= 2) {
    if (lane < half) shared[lane] = join(shared[lane], shared[lane + half]);
    __syncthreads();
  }
  T found = shared[0];
  __syncthreads();
  return found;
}

}  // namespace octavo
