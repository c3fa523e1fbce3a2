// What matrix instructions compute, of registers: compiled once and optimized, as most kernels in the emulator are not.
#include "emulation.hpp"

namespace octavo_emulation {

// The integer in a word's first byte.
static int first(int word, bool is_signed) { return is_signed ? int((signed char)word) : int((unsigned char)word); }

void multiply_fragments(int* sums, const int* a, const int* b, int tall, int deep, bool a_is_signed, bool b_is_signed) {
  struct Fragments {
    int a[4], b[2];
  } own{};
  for (int i = 0; i < tall * deep; i++) own.a[i] = a[i];
  for (int i = 0; i < deep; i++) own.b[i] = b[i];
  auto all = static_cast<const Fragments*>(exchange(&own, sizeof own));
  for (int i = 0; i < 2 * tall; i++) {
    int row = lane() / 4, column = lane() % 4 * 2 + i % 2;
    for (int k = 0; k < 4 * deep; k++) {
      int from_a = all[row * 4 + k % 4].a[k / 4 * tall + i / 2], from_b = all[column * 4 + k % 4].b[k / 4];
      for (int j = 0; j < 4; j++) sums[i] += first(from_a >> 8 * j, a_is_signed) * first(from_b >> 8 * j, b_is_signed);
    }
  }
}

unsigned multiply_rows(int* sums, const Row (&left)[2], const Row* right, int columns, bool a_is_signed, bool b_is_signed) {
  unsigned seen = 0;
  for (int i = 0; i < columns; i++) {
    for (int half = 0; half < 2 && sums; half++)
      for (int k = 0; k < 32; k++)
        sums[i / 2 * 4 + half * 2 + i % 2] += first(left[half].bytes[k], a_is_signed) * first(right[i].bytes[k], b_is_signed);
    for (int k = 0; k < 32; k++) seen = seen * 31 + left[0].bytes[k] + 7 * left[1].bytes[k] + 17 * right[i].bytes[k];
  }
  return seen;
}

}  // namespace octavo_emulation
