// A copy of bytes.
#pragma once
#include "base.cuh"

namespace octavo {

template <class P>
__device__ __forceinline__ void copy(const unsigned char* x, unsigned char* y) {
  long long item = (long long)blockIdx.x * P::threads + threadIdx.x;
  if (item < P::items) y[item] = x[item];
}

}  // namespace octavo
