// Matrix products of four warps together (wgmma, sm_90a), which read both operands from shared memory by themselves.
#pragma once
#include "copy.cuh"

namespace octavo {

// A matrix of rows that lie `width` bytes (32, 64 or 128) behind each other, swizzled so that its chunks of 16 bytes keep to different
// banks: "PTX ISA: Matrix Descriptor". `at` is where it begins; eight rows further on it goes on 8 * width bytes further on.
template <int width>
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned at) {
  constexpr unsigned long long mode = width == 128 ? 1 : width == 64 ? 2 : 3;
  return (at & 0x3ffffu) >> 4 | 1ull << 16 | (unsigned long long)(8 * width / 16) << 32 | mode << 62;
}

#ifdef OCTAVO_EMULATED
// 32 bytes of row `row` of a matrix: by the descriptor's own numbers.
inline void read_described(unsigned char (&to)[32], unsigned long long descriptor, int row) {
  static constexpr unsigned widths[4] = {0, 128, 64, 32};
  unsigned width = widths[descriptor >> 62];
  unsigned begin = unsigned(descriptor & 0x3fff) << 4, stride = unsigned(descriptor >> 32 & 0x3fff) << 4;
  if (width == 0) octavo_emulation::fail("a matrix without a swizzle");
  for (unsigned byte = 0; byte < 32; byte += 16) {
    unsigned at = begin + row / 8 * stride + row % 8 * width + byte;
    memcpy(to + byte, shared_memory() + (at ^ (at >> 7 & (width / 16 - 1)) << 4), 16);
  }
}

// Products that were issued and not waited for: a, b and the sums they go to; what shared memory held then is what it must hold until
// they are done.
struct PendingProducts {
  struct Product {
    int* sums;
    unsigned long long a, b;
    unsigned seen;
  };
  static constexpr int LIMIT = 32;
  Product products[LIMIT];
  int group[LIMIT], count = 0, groups = 0;
};

template <class A, class B, int columns>
unsigned multiply_described(int* sums, unsigned long long a, unsigned long long b) {
  octavo_emulation::Row left[2], right[columns / 4];
  int thread = threadIdx.x % 128, lane = thread % 32;
  for (int half = 0; half < 2; half++) read_described(left[half].bytes, a, thread / 32 * 16 + half * 8 + lane / 4);
  for (int i = 0; i < columns / 4; i++)  // of each eight columns two
    read_described(right[i].bytes, b, i / 2 * 8 + lane % 4 * 2 + i % 2);
  return octavo_emulation::multiply_rows(sums, left, right, columns / 4, is_signed<A>::value, is_signed<B>::value);
}
#else
struct PendingProducts {};
#define OCTAVO_SUMS(j) "+r"(sums[j][0]), "+r"(sums[j][1]), "+r"(sums[j][2]), "+r"(sums[j][3])
#define OCTAVO_M64N128K32(types)                                                                                              \
  asm volatile(                                                                                                               \
      "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n128k32.s32." types                               \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, " \
      "%25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "   \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p; }"                       \
      : OCTAVO_SUMS(0), OCTAVO_SUMS(1), OCTAVO_SUMS(2), OCTAVO_SUMS(3), OCTAVO_SUMS(4), OCTAVO_SUMS(5), OCTAVO_SUMS(6),       \
        OCTAVO_SUMS(7), OCTAVO_SUMS(8), OCTAVO_SUMS(9), OCTAVO_SUMS(10), OCTAVO_SUMS(11), OCTAVO_SUMS(12), OCTAVO_SUMS(13),   \
        OCTAVO_SUMS(14), OCTAVO_SUMS(15)                                                                                      \
      : "l"(a), "l"(b))
#endif

// Issues sums[64 x 128] += a[64 x 32] * b[32 x 128], a and b by their descriptors, b as rows. Warp w of four holds rows 16 * w to
// 16 * w + 15, as `multiply_16x8x32` does, for each eight columns. The sums may not be touched until the product is waited for.
template <class A, class B>
__device__ __forceinline__ void issue_64x128x32(int (&sums)[16][4], unsigned long long a, unsigned long long b, PendingProducts& pending) {
#ifdef OCTAVO_EMULATED
  if (pending.count == pending.LIMIT) octavo_emulation::fail("more products on their way than the emulator keeps");
  pending.group[pending.count] = pending.groups;
  pending.products[pending.count++] = {&sums[0][0], a, b, multiply_described<A, B, 128>(nullptr, a, b)};
#else
  if constexpr (is_signed<A>::value && is_signed<B>::value) {
    OCTAVO_M64N128K32("s8.s8");
  } else if constexpr (is_signed<A>::value) {
    OCTAVO_M64N128K32("s8.u8");
  } else if constexpr (is_signed<B>::value) {
    OCTAVO_M64N128K32("u8.s8");
  } else {
    OCTAVO_M64N128K32("u8.u8");
  }
#endif
}

// Before the first product of a group: what the warps wrote into the sums' registers is done.
__device__ __forceinline__ void begin_products() {
#ifndef OCTAVO_EMULATED
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Makes what this thread wrote into shared memory visible to products that other threads issue behind a barrier.
__device__ __forceinline__ void publish_to_products() {
#ifndef OCTAVO_EMULATED
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void commit_products(PendingProducts& pending) {
#ifdef OCTAVO_EMULATED
  pending.groups++;
#else
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits for all groups of products but the `newest` last ones.
template <int newest, class A, class B>
__device__ __forceinline__ void wait_products(PendingProducts& pending) {
#ifdef OCTAVO_EMULATED
  int kept = 0;
  for (int i = 0; i < pending.count; i++) {
    auto product = pending.products[i];
    if (pending.group[i] < pending.groups - newest) {
      if (multiply_described<A, B, 128>(product.sums, product.a, product.b) != product.seen)
        octavo_emulation::fail("shared memory changed while products read it");
    } else {
      pending.group[kept] = pending.group[i];
      pending.products[kept++] = product;
    }
  }
  pending.count = kept;
#else
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(newest) : "memory");
#endif
}

}  // namespace octavo
