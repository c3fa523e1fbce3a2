/* ONNX Runtime's C API: onnxruntime MODEL INPUT OUTPUT INPUT_NAME OUTPUT_NAME OUTPUT_BYTES DIM... reads float32 values, runs the
   model once on one thread of the CPU, writes the result and ends.

   The API is a table of functions whose order is fixed for ever; those used here are taken from it by their place. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct { const void *const *(*table)(uint32_t); const char *(*version)(void); } Base;
const Base *OrtGetApiBase(void);

enum { MESSAGE = 2, ENVIRONMENT = 3, SESSION = 7, RUN = 9, OPTIONS = 10, THREADS = 24, TENSOR = 49, DATA = 51, MEMORY = 69 };
enum { ERRORS_ALONE = 3, FLOAT32 = 1, MOST = 8 };
static const void *const *api;
#define CALL(place, ...) check(((void *(*)(__VA_ARGS__))api[place])

static void check(void *status) {
  if (!status) return;
  fprintf(stderr, "%s\n", ((const char *(*)(const void *))api[MESSAGE])(status));
  exit(1);
}

int main(int argc, char **argv) {
  void *environment, *options, *session, *memory, *input, *output = NULL, *data;
  int64_t shape[MOST];
  size_t count = 1, rank = argc > 7 ? (size_t)(argc - 7) : 0;
  if (rank < 1 || rank > MOST) return 2;
  for (size_t i = 0; i < rank; i++) count *= (size_t)(shape[i] = strtoll(argv[7 + i], NULL, 10));
  api = OrtGetApiBase()->table(1);
  CALL(ENVIRONMENT, int, const char *, void **)(ERRORS_ALONE, "", &environment));
  CALL(OPTIONS, void **)(&options));
  CALL(THREADS, void *, int)(options, 1));
  CALL(SESSION, void *, const char *, void *, void **)(environment, argv[1], options, &session));
  CALL(MEMORY, int, int, void **)(0, 0, &memory));
  float *values = malloc(count * sizeof *values);
  FILE *file = fopen(argv[2], "rb");
  if (!values || !file || fread(values, sizeof *values, count, file) != count) return 2;
  fclose(file);
  CALL(TENSOR, void *, void *, size_t, const int64_t *, size_t, int, void **)
  (memory, values, count * sizeof *values, shape, rank, FLOAT32, &input));
  const char *given[] = {argv[4]}, *wanted[] = {argv[5]};
  CALL(RUN, void *, void *, const char *const *, void **, size_t, const char *const *, size_t, void **)
  (session, NULL, given, &input, 1, wanted, 1, &output));
  CALL(DATA, void *, void **)(output, &data));
  const size_t bytes = strtoull(argv[6], NULL, 10);
  file = fopen(argv[3], "wb");
  if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file)) return 2;
  _exit(0); /* what is taken down then is not the model's first result */
}
