// Dot products of four 8-bit integers: DP4A.
#pragma once
#include "base.cuh"

namespace octavo {

// acc + sum of a[i] * b[i]; the integers of `a` are of type A, those of `b` of type B.
template <class A, class B = int8>
__device__ __forceinline__ int dot4(int a, int b, int acc) {
#ifdef OCTAVO_EMULATED
  for (int i = 0; i < 4; i++) acc += int(A(a >> 8 * i)) * int(B(b >> 8 * i));
  return acc;
#else
  if constexpr (is_signed<A>::value && is_signed<B>::value) {
    asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(acc) : "r"(a), "r"(b));
  } else if constexpr (is_signed<A>::value) {
    asm("dp4a.s32.u32 %0, %1, %2, %0;" : "+r"(acc) : "r"(a), "r"(b));
  } else if constexpr (is_signed<B>::value) {
    asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(acc) : "r"(a), "r"(b));
  } else {
    asm("dp4a.u32.u32 %0, %1, %2, %0;" : "+r"(acc) : "r"(a), "r"(b));
  }
  return acc;
#endif
}

}  // namespace octavo
