/* Two threads that call one C library, each with a workspace of its own: two_threads INPUT EXPECTED CALLS ends with 0 if every call
   of both gave the expected bytes. Of libraries called "model" with one input and one output. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

static _Alignas(MODEL_ALIGNMENT) unsigned char input[MODEL_INPUT0_BYTES];
static unsigned char expected[MODEL_OUTPUT0_BYTES];
static _Alignas(MODEL_ALIGNMENT) unsigned char outputs[2][(MODEL_OUTPUT0_BYTES + MODEL_ALIGNMENT) / MODEL_ALIGNMENT * MODEL_ALIGNMENT];
static _Alignas(MODEL_ALIGNMENT) unsigned char workspaces[2][(MODEL_WORKSPACE_BYTES + MODEL_ALIGNMENT) / MODEL_ALIGNMENT * MODEL_ALIGNMENT];
static long calls;

static void read_all(const char *path, unsigned char *to, size_t bytes) {
  FILE *file = fopen(path, "rb");
  if (!file || fread(to, 1, bytes, file) != bytes) exit(2);
  fclose(file);
}

static void *run(void *argument) {
  const int number = *(const int *)argument;
  const void *const given[] = {input};
  void *const made[] = {outputs[number]};
  for (long call = 0; call < calls; call++) {
    memset(outputs[number], 0, MODEL_OUTPUT0_BYTES);
    if (model_run(given, made, workspaces[number]) != MODEL_OK) return argument;
    if (memcmp(outputs[number], expected, MODEL_OUTPUT0_BYTES) != 0) return argument;
  }
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t threads[2];
  int numbers[2] = {0, 1}, failed = 0;
  if (argc != 4) return 2;
  read_all(argv[1], input, sizeof input);
  read_all(argv[2], expected, sizeof expected);
  calls = strtol(argv[3], NULL, 10);
  for (int i = 0; i < 2; i++)
    if (pthread_create(&threads[i], NULL, run, &numbers[i])) return 2;
  for (int i = 0; i < 2; i++) {
    void *result;
    if (pthread_join(threads[i], &result)) return 2;
    failed |= result != NULL;
  }
  return failed;
}
