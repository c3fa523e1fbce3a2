/* LiteRT's C API: litert MODEL INPUT OUTPUT reads raw values, runs the model once on the CPU, writes the result and ends.

   The declarations are those of LiteRT 2.3, as far as they are used; handles are pointers, a tensor's type is an opaque block. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef void *Handle;
typedef struct { int tag; struct { int kind; int64_t value; } any; } Option;

int LiteRtCreateEnvironment(int, const Option *, Handle *);
int LiteRtCreateModelFromFile(Handle, const char *, Handle *);
int LiteRtCreateOptions(Handle *);
int LiteRtSetOptionsHardwareAccelerators(Handle, int);
int LiteRtCreateCompiledModel(Handle, Handle, Handle, Handle *);
int LiteRtGetCompiledModelInputBufferRequirements(Handle, size_t, size_t, Handle *);
int LiteRtGetCompiledModelOutputBufferRequirements(Handle, size_t, size_t, Handle *);
int LiteRtGetModelSubgraph(Handle, size_t, Handle *);
int LiteRtGetSubgraphInput(Handle, size_t, Handle *);
int LiteRtGetSubgraphOutput(Handle, size_t, Handle *);
int LiteRtGetRankedTensorType(Handle, void *);
int LiteRtCreateManagedTensorBufferFromRequirements(Handle, const void *, Handle, Handle *);
int LiteRtGetTensorBufferPackedSize(Handle, size_t *);
int LiteRtLockTensorBuffer(Handle, void **, int);
int LiteRtUnlockTensorBuffer(Handle);
int LiteRtRunCompiledModel(Handle, size_t, size_t, Handle *, size_t, Handle *);

enum { CPU = 1, INTEGER = 2, ACCELERATORS = 24, LEAST_LOGGED = 25, READ = 0, WRITE = 1, ERRORS_ALONE = 3 };

static void check(int status, const char *what) {
  if (status == 0) return;
  fprintf(stderr, "%s: status %d\n", what, status);
  exit(1);
}

int main(int argc, char **argv) {
  /* CPUs alone: nothing looks for libraries of GPUs and NPUs. */
  const Option options[] = {{ACCELERATORS, {INTEGER, CPU}}, {LEAST_LOGGED, {INTEGER, ERRORS_ALONE}}};
  Handle environment, model, chosen, compiled, graph, tensor, needs, input, output;
  static int64_t type[64];
  void *data;
  size_t bytes;
  if (argc != 4) return 2;
  check(LiteRtCreateEnvironment(2, options, &environment), "environment");
  check(LiteRtCreateModelFromFile(environment, argv[1], &model), "model");
  check(LiteRtCreateOptions(&chosen), "options");
  check(LiteRtSetOptionsHardwareAccelerators(chosen, CPU), "options");
  check(LiteRtCreateCompiledModel(environment, model, chosen, &compiled), "compiled model");
  check(LiteRtGetModelSubgraph(model, 0, &graph), "graph");
  check(LiteRtGetSubgraphInput(graph, 0, &tensor), "input");
  check(LiteRtGetRankedTensorType(tensor, type), "input");
  check(LiteRtGetCompiledModelInputBufferRequirements(compiled, 0, 0, &needs), "input");
  check(LiteRtCreateManagedTensorBufferFromRequirements(environment, type, needs, &input), "input");
  check(LiteRtGetSubgraphOutput(graph, 0, &tensor), "output");
  check(LiteRtGetRankedTensorType(tensor, type), "output");
  check(LiteRtGetCompiledModelOutputBufferRequirements(compiled, 0, 0, &needs), "output");
  check(LiteRtCreateManagedTensorBufferFromRequirements(environment, type, needs, &output), "output");
  check(LiteRtGetTensorBufferPackedSize(input, &bytes), "input");
  check(LiteRtLockTensorBuffer(input, &data, WRITE), "input");
  FILE *file = fopen(argv[2], "rb");
  if (!file || fread(data, 1, bytes, file) != bytes) return 2;
  fclose(file);
  check(LiteRtUnlockTensorBuffer(input), "input");
  check(LiteRtRunCompiledModel(compiled, 0, 1, &input, 1, &output), "run");
  check(LiteRtGetTensorBufferPackedSize(output, &bytes), "output");
  check(LiteRtLockTensorBuffer(output, &data, READ), "output");
  file = fopen(argv[3], "wb");
  if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file)) return 2;
  _exit(0); /* what is taken down then is not the model's first result */
}
