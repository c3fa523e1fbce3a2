/* The toy NPU's kernels: int8 in, int8 out, int32 sums, scales that are powers of two, results shifted half up. */

#include <stdint.h>
#include <string.h>

typedef struct {
  int batch, height, width, channels;  /* of the input */
  int out_height, out_width, out_channels;
  int kernel_height, kernel_width;
  int stride_height, stride_width, dilation_height, dilation_width, top, left;
  int groups;
} Window;

static int8_t saturate(int64_t value, int low, int high) { return (int8_t)(value < low ? low : value > high ? high : value); }

/* value / 2**shift, ties up; a negative shift is one to the left. */
static int64_t shifted(int64_t value, int shift) {
  return shift > 0 ? (value + ((int64_t)1 << (shift - 1))) >> shift : value * ((int64_t)1 << -shift);
}

/* numerator / denominator, ties up; the denominator is positive. */
static int64_t divided(int64_t numerator, int64_t denominator) {
  int64_t twice = 2 * numerator + denominator, quotient = twice / (2 * denominator);
  return quotient - (twice % (2 * denominator) < 0);
}

/* Copy the pixels below a window to the scratchpad, taps in order, 0 where they lie in the padding. */
static void gather(const int8_t *x, const Window *w, int n, int row, int column, int8_t *patch) {
  for (int r = 0; r < w->kernel_height; r++)
    for (int s = 0; s < w->kernel_width; s++, patch += w->channels) {
      int i = row * w->stride_height - w->top + r * w->dilation_height;
      int j = column * w->stride_width - w->left + s * w->dilation_width;
      if (i < 0 || i >= w->height || j < 0 || j >= w->width) memset(patch, 0, w->channels);
      else memcpy(patch, x + ((n * w->height + i) * w->width + j) * w->channels, w->channels);
    }
}

/* weight [out][tap][in of a group], bias and shift by output channel. */
static void conv2d(const int8_t *x, const int8_t *weight, const int32_t *bias, const int32_t *shift, uint8_t *scratch, int8_t *y,
                   Window w, int low, int high) {
  int taps = w.kernel_height * w.kernel_width, group_in = w.channels / w.groups, group_out = w.out_channels / w.groups;
  int8_t *patch = (int8_t *)scratch;
  for (int n = 0; n < w.batch; n++)
    for (int row = 0; row < w.out_height; row++)
      for (int column = 0; column < w.out_width; column++) {
        gather(x, &w, n, row, column, patch);
        for (int o = 0; o < w.out_channels; o++) {
          const int8_t *pixels = patch + o / group_out * group_in, *factors = weight + o * taps * group_in;
          int32_t sum = bias[o];
          for (int t = 0; t < taps; t++)
            for (int c = 0; c < group_in; c++) sum += (int32_t)pixels[t * w.channels + c] * factors[t * group_in + c];
          *y++ = saturate(shifted(sum, shift[o]), low, high);
        }
      }
}

/* weight [out][in] */
static void dense(const int8_t *x, const int8_t *weight, const int32_t *bias, const int32_t *shift, int8_t *y, int rows, int inputs,
                  int outputs, int low, int high) {
  for (int n = 0; n < rows; n++, x += inputs)
    for (int o = 0; o < outputs; o++) {
      int32_t sum = bias[o];
      for (int c = 0; c < inputs; c++) sum += (int32_t)x[c] * weight[o * inputs + c];
      *y++ = saturate(shifted(sum, shift[o]), low, high);
    }
}

/* An operand is as large as the result, or repeats. */
static void add(const int8_t *a, const int8_t *b, int8_t *y, int size, int a_size, int b_size, int a_left, int b_left, int shift,
                int low, int high) {
  for (int i = 0; i < size; i++) {
    int64_t sum = (int64_t)a[i % a_size] * ((int64_t)1 << a_left) + (int64_t)b[i % b_size] * ((int64_t)1 << b_left);
    y[i] = saturate(shifted(sum, shift), low, high);
  }
}

/* An average times 2**-shift; `whole` counts taps in the padding, too. */
static void average(const int8_t *x, int8_t *y, Window w, int whole, int shift, int low, int high) {
  for (int n = 0; n < w.batch; n++)
    for (int row = 0; row < w.out_height; row++)
      for (int column = 0; column < w.out_width; column++)
        for (int c = 0; c < w.channels; c++) {
          int64_t sum = 0, count = 0;
          for (int r = 0; r < w.kernel_height; r++)
            for (int s = 0; s < w.kernel_width; s++) {
              int i = row * w.stride_height - w.top + r * w.dilation_height;
              int j = column * w.stride_width - w.left + s * w.dilation_width;
              if (i < 0 || i >= w.height || j < 0 || j >= w.width) continue;
              sum += x[((n * w.height + i) * w.width + j) * w.channels + c];
              count++;
            }
          if (whole) count = w.kernel_height * w.kernel_width;
          int64_t up = shift < 0 ? (int64_t)1 << -shift : 1, down = shift > 0 ? (int64_t)1 << shift : 1;
          *y++ = saturate(divided(sum * up, count * down), low, high);
        }
}

/* Where the index-th element of axes with these sizes and strides lies. */
static int64_t offset(int64_t index, int rank, const int *sizes, const int *strides) {
  int64_t found = 0;
  for (int axis = rank - 1; axis >= 0; index /= sizes[axis--]) found += index % sizes[axis] * strides[axis];
  return found;
}

/* The mean over some axes, times 2**-shift. */
static void mean(const int8_t *x, int8_t *y, int64_t size, int kept, const int *sizes, const int *strides, int64_t count, int reduced,
                 const int *reduced_sizes, const int *reduced_strides, int shift, int low, int high) {
  int64_t up = shift < 0 ? (int64_t)1 << -shift : 1, down = shift > 0 ? (int64_t)1 << shift : 1;
  for (int64_t i = 0; i < size; i++) {
    const int8_t *from = x + offset(i, kept, sizes, strides);
    int64_t sum = 0;
    for (int64_t k = 0; k < count; k++) sum += from[offset(k, reduced, reduced_sizes, reduced_strides)];
    y[i] = saturate(divided(sum * up, count * down), low, high);
  }
}

static void maximum(const int8_t *x, int8_t *y, Window w, int low, int high) {
  for (int n = 0; n < w.batch; n++)
    for (int row = 0; row < w.out_height; row++)
      for (int column = 0; column < w.out_width; column++)
        for (int c = 0; c < w.channels; c++) {
          int best = -128;
          for (int r = 0; r < w.kernel_height; r++)
            for (int s = 0; s < w.kernel_width; s++) {
              int i = row * w.stride_height - w.top + r * w.dilation_height;
              int j = column * w.stride_width - w.left + s * w.dilation_width;
              if (i < 0 || i >= w.height || j < 0 || j >= w.width) continue;
              int value = x[((n * w.height + i) * w.width + j) * w.channels + c];
              best = value > best ? value : best;
            }
          *y++ = saturate(best, low, high);
        }
}

/* Rows of `part` elements to rows of `whole` elements. */
static void place(const int8_t *x, int8_t *y, int rows, int part, int whole) {
  for (int n = 0; n < rows; n++) memcpy(y + n * whole, x + n * part, part);
}

static void change(const int8_t *x, int8_t *y, int size, int shift, int low, int high) {
  for (int i = 0; i < size; i++) y[i] = saturate(shifted(x[i], shift), low, high);
}

static void lookup(const int8_t *x, const int8_t *table, int8_t *y, int size) {
  for (int i = 0; i < size; i++) y[i] = table[x[i] + 128];
}
