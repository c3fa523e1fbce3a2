/* Runs kernels on data from a file, for machines that QEMU emulates: run_kernels INPUT OUTPUT

   INPUT holds one record for each call, of little-endian int64: the kernel's number, how many operands it has, then for each
   operand the code and bits of its dtype, its elements, its bytes, and these bytes. OUTPUT gets every operand's bytes as they are
   after the call, and GUARD more of what lies behind the last one, which is what most kernels write.

   Every operand lies right before an inaccessible page where its size lets it start at a multiple of 64 bytes, else right behind
   one: a kernel that reads or writes beyond ends the process. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern int (*const CALLS[])(void *, const void *, int32_t, void *); /* the kernels by number */
extern const int KERNELS; /* how many */

enum { GUARD = 256, FILLER = 77, TENSOR = 7 };

typedef struct { void *data; int32_t device[2]; int32_t ndim; uint8_t code, bits; uint16_t lanes; int64_t *shape, *strides; uint64_t offset; } Tensor;
typedef struct { int32_t kind; uint32_t zero; union { int64_t integer; void *pointer; } value; } Any;
typedef int (*Lambda)(int, void *, void *);
typedef struct { void *sync; int32_t tasks; } Environment;

static void *allocate(int type, int id, uint64_t bytes, int code, int bits) {
  (void)type, (void)id, (void)code, (void)bits;
  return aligned_alloc(64, (bytes + 63) / 64 * 64);
}
static int release(int type, int id, void *memory) {
  (void)type, (void)id;
  free(memory);
  return 0;
}
static int launch(Lambda function, void *data, int tasks) {
  Environment all = {0, tasks ? tasks : 1};
  for (int task = 0; task < all.tasks; task++)
    if (function(task, &all, data)) return -1;
  return 0;
}

/* What TVM's loader fills in; a module without parallel loops or buffers of its own lacks them. */
void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = allocate;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = release;
int (*__TVMBackendParallelLaunch)(Lambda, void *, int) = launch;

static void fail(const char *why) {
  fprintf(stderr, "run_kernels: %s\n", why);
  exit(2);
}

static void *placed(int64_t bytes, uint8_t **region, int64_t *length) {
  int64_t page = sysconf(_SC_PAGESIZE), inner = (bytes + GUARD + page - 1) / page * page;
  *length = inner + 2 * page;
  *region = mmap(0, *length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*region == MAP_FAILED || mprotect(*region, page, PROT_NONE)) fail("no memory");
  if (bytes % 64) return *region + page;
  if (mprotect(*region + page + inner, page, PROT_NONE)) fail("no memory");
  return *region + page + inner - bytes;
}

static int64_t number(FILE *file) {
  int64_t value = 0;
  if (fread(&value, sizeof value, 1, file) != 1) fail("the input ends early");
  return value;
}

int main(int argc, char **argv) {
  if (argc != 3) fail("expected an input and an output file");
  FILE *input = fopen(argv[1], "rb"), *output = fopen(argv[2], "wb");
  if (!input || !output) fail("cannot open a file");
  int64_t kernel;
  while (fread(&kernel, sizeof kernel, 1, input) == 1) {
    enum { MOST = 64 };
    static Tensor tensors[MOST];
    static Any arguments[MOST];
    static int64_t shapes[MOST], strides[MOST], sizes[MOST], lengths[MOST];
    static uint8_t *regions[MOST];
    int64_t count = number(input), bytes = 0;
    if (kernel < 0 || kernel >= KERNELS || count < 1 || count > MOST) fail("no such kernel");
    for (int64_t i = 0; i < count; i++) {
      uint8_t code = number(input), bits = number(input);
      shapes[i] = number(input);
      strides[i] = 1;
      sizes[i] = bytes = number(input);
      void *data = placed(bytes, &regions[i], &lengths[i]);
      if (bytes % 64) memset(data, FILLER, bytes + GUARD);
      if (bytes && fread(data, bytes, 1, input) != 1) fail("the input ends early");
      tensors[i] = (Tensor){data, {1, 0}, 1, code, bits, 1, &shapes[i], &strides[i], 0};
      arguments[i] = (Any){TENSOR, 0, {.pointer = &tensors[i]}};
    }
    Any result = {0, 0, {0}};
    fprintf(stderr, "kernel %ld\n", (long)kernel); /* the last line names the culprit */
    if (CALLS[kernel](0, arguments, (int32_t)count, &result)) fail("a kernel failed");
    static uint8_t guard[GUARD];
    memset(guard, FILLER, GUARD);
    for (int64_t i = 0; i < count; i++) fwrite(tensors[i].data, 1, sizes[i], output);
    fwrite(bytes % 64 ? (uint8_t *)tensors[count - 1].data + bytes : guard, 1, GUARD, output);
    for (int64_t i = 0; i < count; i++) munmap(regions[i], lengths[i]);
  }
  return fclose(output) ? 2 : 0;
}
