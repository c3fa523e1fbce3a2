/* Steps of a decoder of open batch and sequence: main FOLDER CAPACITY. Reads the folder's x (float32, steps one after the other),
   writes y, what each step gives. Step k has 1 + k % 3 rows; behind step 3 a copy goes on by itself, and then the first drops all
   rows but 2 and goes on. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 6
#define WIDTH 16

static void* block(size_t bytes) { return aligned_alloc(MODEL_ALIGNMENT, (bytes / MODEL_ALIGNMENT + 1) * MODEL_ALIGNMENT); }

static FILE *in, *out;

static int step(model_state* state, int number) {
  const void* inputs[MODEL_INPUTS] = {NULL};
  void* outputs[MODEL_OUTPUTS] = {NULL};
  model_sizes sizes = {.batch = state->sizes.batch, .sequence = 1 + number % 3, .past = -7};
  model_sizes whole = sizes;
  model_needs needs;
  char text[200];
  void *x, *y, *workspace;
  int code;
  whole.past = state->sizes.past;
  if (model_find_needs(&whole, &needs) != MODEL_OK) return 100;
  x = block(needs.input_bytes[0]);
  y = block(needs.output_bytes[0]);
  workspace = block(needs.workspace);
  if (fread(x, 1, needs.input_bytes[0], in) != needs.input_bytes[0]) return 101;
  inputs[0] = x;
  outputs[0] = y;
  if (model_state_check(state, &sizes, text, sizeof text) != MODEL_OK) puts(text);
  code = model_state_step(state, &sizes, inputs, outputs, workspace);
  if (code == MODEL_OK) fwrite(y, 1, needs.output_bytes[0], out);
  free(x);
  free(y);
  free(workspace);
  return code;
}

int main(int argc, char** argv) {
  model_sizes capacity = {.batch = 2, .past = 0};
  model_state state, copy;
  size_t bytes;
  void *memory, *other;
  int k, code;
  char path[400];
  if (argc != 3) return 2;
  capacity.past = atoi(argv[2]);
  if (model_state_bytes(&capacity, &bytes) != MODEL_OK) return 3;
  memory = block(bytes);
  other = block(bytes);
  snprintf(path, sizeof path, "%s/x", argv[1]);
  in = fopen(path, "rb");
  snprintf(path, sizeof path, "%s/y", argv[1]);
  out = fopen(path, "wb");
  if (model_state_open(&state, &capacity, memory) != MODEL_OK) return 4;
  for (k = 0; k < STEPS; k++) {
    if (k == 3 && model_state_copy(&state, &copy, other) != MODEL_OK) return 5;
    code = step(&state, k);
    if (code != MODEL_OK) return 10 + code;
  }
  for (k = 3; k < STEPS; k++)
    if ((code = step(&copy, k)) != MODEL_OK) return 20 + code;
  if (model_state_reset(&state, 100) != MODEL_STATE || model_state_reset(&state, 2) != MODEL_OK) return 6;
  for (k = 0; k < STEPS; k++)
    if ((code = step(&state, k)) != MODEL_OK) return 30 + code;
  printf("%d rows\n", (int)state.sizes.past);
  fclose(in);
  fclose(out);
  free(memory);
  free(other);
  return 0;
}
