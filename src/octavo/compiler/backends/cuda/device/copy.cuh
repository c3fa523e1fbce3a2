// Copies into shared memory, which is named by 32-bit addresses as its instructions take them.
#pragma once
#include "base.cuh"

namespace octavo {

// Where the block's shared memory begins. The emulator's addresses count from there.
__device__ __forceinline__ unsigned shared_begin() {
#ifdef OCTAVO_EMULATED
  return 0;
#else
  return unsigned(__cvta_generic_to_shared(shared_memory()));
#endif
}

#ifdef OCTAVO_EMULATED
inline void check_alignment(unsigned at, const void* from, int bytes) {
  if (at % bytes || reinterpret_cast<uintptr_t>(from) % bytes) octavo_emulation::fail("an address is no multiple of what is copied");
}
#endif

// Writes words of a thread's registers; `at` is a multiple of their size.
template <int words>
__device__ __forceinline__ void store_shared(unsigned at, const int* from) {
#ifdef OCTAVO_EMULATED
  check_alignment(at, nullptr, 4 * words);
  memcpy(shared_memory() + at, from, 4 * words);
#else
  if constexpr (words == 4) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
  } else {
    static_assert(words == 1);
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(from[0]) : "memory");
  }
#endif
}

// Reads 16 bytes into four registers.
__device__ __forceinline__ void load_shared(int (&to)[4], unsigned at) {
#ifdef OCTAVO_EMULATED
  check_alignment(at, nullptr, 16);
  memcpy(to, shared_memory() + at, 16);
#else
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at));
#endif
}

// cp.async (sm_80 on) of 4, 8 or 16 bytes, or that many zeros. Until it is waited for the destination holds anything: the emulator
// puts noise there first.
template <int bytes>
__device__ __forceinline__ void copy_async(unsigned at, const void* from, bool zeros = false) {
  static_assert(bytes == 4 || bytes == 8 || bytes == 16);
#ifdef OCTAVO_EMULATED
  auto& copies = octavo_emulation::copies();
  check_alignment(at, from, bytes);
  if (copies.count == copies.LIMIT) octavo_emulation::fail("more asynchronous copies than the emulator keeps");
  memset(shared_memory() + at, 0xa5 ^ int(at >> 4), bytes);
  copies.group[copies.count] = copies.groups;
  copies.copies[copies.count++] = {shared_memory() + at, from, bytes, zeros ? 0 : bytes};
#else
  int size = zeros ? 0 : bytes;
  if constexpr (bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(__cvta_generic_to_global(from)), "r"(size) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(__cvta_generic_to_global(from)), "n"(bytes), "r"(size)
                 : "memory");
  }
#endif
}

// Closes a group: this thread's copies since the last one.
__device__ __forceinline__ void commit_copies() {
#ifdef OCTAVO_EMULATED
  octavo_emulation::copies().groups++;
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for this thread's groups but the `newest` last closed ones.
template <int newest>
__device__ __forceinline__ void wait_copies() {
#ifdef OCTAVO_EMULATED
  auto& copies = octavo_emulation::copies();
  int kept = 0;
  for (int i = 0; i < copies.count; i++) {
    auto& copy = copies.copies[i];
    if (copies.group[i] < copies.groups - newest) {
      memset(copy.to, 0, copy.bytes);
      memcpy(copy.to, copy.from, copy.source);
    } else {
      copies.group[kept] = copies.group[i];
      copies.copies[kept++] = copy;
    }
  }
  copies.count = kept;
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory");
#endif
}

}  // namespace octavo
