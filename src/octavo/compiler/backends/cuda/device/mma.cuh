// Matrix products of a warp, and how their operands are read from shared memory. On a GPU PTX, in the emulator its definition: the
// fragments of each lane as "PTX ISA: Matrix Fragments for mma.m16n8k32, mma.m8n8k16" and "ldmatrix" lay them out.
#pragma once
#include "copy.cuh"

namespace octavo {

// `count` matrices (1, 2 or 4) of 8 rows of 16 bytes. Lane i names row i % 8 of matrix i / 8; each gets, of every matrix, the four
// bytes from 4 * (lane % 4) on of row lane / 4. The eight rows of a matrix must lie in different banks: the emulator fails else.
template <int count>
__device__ __forceinline__ void load_matrices(int* to, unsigned at) {
  static_assert(count == 1 || count == 2 || count == 4);
#ifdef OCTAVO_EMULATED
  struct Row {
    unsigned at;
    unsigned char bytes[16];
  } own{at, {}};
  int lane = octavo_emulation::lane();
  if (lane < 8 * count) {
    check_alignment(at, nullptr, 16);
    memcpy(own.bytes, shared_memory() + at, 16);
  }
  auto all = static_cast<const Row*>(octavo_emulation::exchange(&own, sizeof own));
  for (int matrix = 0; matrix < count; matrix++) {
    unsigned banks = 0;
    for (int row = 0; row < 8; row++) banks |= 1u << all[8 * matrix + row].at / 16 % 8;
    if (banks != 255) octavo_emulation::fail("rows of a matrix share banks");
    memcpy(&to[matrix], all[8 * matrix + lane / 4].bytes + 4 * (lane % 4), 4);
  }
#else
  if constexpr (count == 4) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at));
  } else if constexpr (count == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(at));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(to[0]) : "r"(at));
  }
#endif
}

#ifndef OCTAVO_EMULATED
#define OCTAVO_M16N8K32(types)                                                                                     \
  asm("mma.sync.aligned.m16n8k32.row.col.s32." types ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])                                                 \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
#define OCTAVO_M8N8K16(types)                                                                             \
  asm("mma.sync.aligned.m8n8k16.row.col.s32." types ".s32 {%0, %1}, {%2}, {%3}, {%0, %1};" \
      : "+r"(sums[0]), "+r"(sums[1])                                                                      \
      : "r"(a), "r"(b))
#endif

// sums[8 x 8] += a[8 x 16] * b[16 x 8] (sm_75 on); A and B are int8 or uint8.
template <class A, class B>
__device__ __forceinline__ void multiply_8x8x16(int* sums, int a, int b) {
#ifdef OCTAVO_EMULATED
  octavo_emulation::multiply_fragments(sums, &a, &b, 1, 1, is_signed<A>::value, is_signed<B>::value);
#else
  if constexpr (is_signed<A>::value && is_signed<B>::value) {
    OCTAVO_M8N8K16("s8.s8");
  } else if constexpr (is_signed<A>::value) {
    OCTAVO_M8N8K16("s8.u8");
  } else if constexpr (is_signed<B>::value) {
    OCTAVO_M8N8K16("u8.s8");
  } else {
    OCTAVO_M8N8K16("u8.u8");
  }
#endif
}

// sums[16 x 8] += a[16 x 32] * b[32 x 8]: one instruction from sm_80 on, before that four of them; the sums' rows 8 to 15 are
// sums[2] and sums[3].
template <int capability, class A, class B>
__device__ __forceinline__ void multiply_16x8x32(int (&sums)[4], const int (&a)[4], const int* b) {
  if constexpr (capability < 80) {
    multiply_8x8x16<A, B>(sums, a[0], b[0]);
    multiply_8x8x16<A, B>(sums + 2, a[1], b[0]);
    multiply_8x8x16<A, B>(sums, a[2], b[1]);
    multiply_8x8x16<A, B>(sums + 2, a[3], b[1]);
  } else {
#ifdef OCTAVO_EMULATED
    octavo_emulation::multiply_fragments(sums, a, b, 2, 2, is_signed<A>::value, is_signed<B>::value);
#else
    if constexpr (is_signed<A>::value && is_signed<B>::value) {
      OCTAVO_M16N8K32("s8.s8");
    } else if constexpr (is_signed<A>::value) {
      OCTAVO_M16N8K32("s8.u8");
    } else if constexpr (is_signed<B>::value) {
      OCTAVO_M16N8K32("u8.s8");
    } else {
      OCTAVO_M16N8K32("u8.u8");
    }
#endif
  }
}

}  // namespace octavo
