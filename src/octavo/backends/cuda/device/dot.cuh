// Dot products of four 8-bit integers: DP4A.
#pragma once
#include "base.cuh"

namespace octavo {

// acc + sum of a[i] * b[i]; the integers of `a` are of type T, those of `b` int8.
template <class T>
__device__ __forceinline__ int dot4(int a, int b, int acc) {
#ifdef OCTAVO_EMULATED
  for (int i = 0; i < 4; i++) acc += int(T(a >> 8 * i)) * int((signed char)(b >> 8 * i));
  return acc;
#else
  if (is_signed<T>::value) {
    asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(acc) : "r"(a), "r"(b));
  } else {
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(acc) : "r"(a), "r"(b));
  }
  return acc;
#endif
}

}  // namespace octavo
