/* Functions of CMSIS-NN's C interface (s8) in plain C, from their documentation: same names, structs and arguments. On a Cortex-M
   `#include "arm_nnfunctions.h"` stands here, and the library is linked. */

#include <stdint.h>
#include <string.h>

typedef enum { ARM_CMSIS_NN_SUCCESS = 0, ARM_CMSIS_NN_ARG_ERROR = -1, ARM_CMSIS_NN_NO_IMPL_ERROR = -2 } arm_cmsis_nn_status;
typedef struct { int32_t w, h; } cmsis_nn_tile;
typedef struct { void *buf; int32_t size; } cmsis_nn_context;
typedef struct { int32_t n, h, w, c; } cmsis_nn_dims;
typedef struct { int32_t *multiplier, *shift; } cmsis_nn_per_channel_quant_params;
typedef struct { int32_t multiplier, shift; } cmsis_nn_per_tensor_quant_params;
typedef struct { int32_t min, max; } cmsis_nn_activation;
typedef struct {
  int32_t input_offset, output_offset;
  cmsis_nn_tile stride, padding, dilation;
  cmsis_nn_activation activation;
} cmsis_nn_conv_params;
typedef struct {
  int32_t input_offset, output_offset, ch_mult;
  cmsis_nn_tile stride, padding, dilation;
  cmsis_nn_activation activation;
} cmsis_nn_dw_conv_params;
typedef struct { cmsis_nn_tile stride, padding; cmsis_nn_activation activation; } cmsis_nn_pool_params;
typedef struct { int32_t input_offset, filter_offset, output_offset; cmsis_nn_activation activation; } cmsis_nn_fc_params;

/* value * multiplier * 2**(shift - 31), rounded twice: the product by 31 bits, ties up; the shift to the right, ties away from 0. */
static inline int32_t arm_nn_requantize(int32_t value, int32_t multiplier, int32_t shift) {
  int64_t product = (int64_t)value * ((int64_t)1 << (shift > 0 ? shift : 0)) * multiplier;
  int64_t high = (product + ((int64_t)1 << 30)) >> 31;
  if (shift >= 0) return (int32_t)high;
  int64_t half = (int64_t)1 << (-shift - 1);
  return (int32_t)((high + half - (high < 0)) >> -shift);
}

/* The same rounded once, ties up: FULLY_CONNECTED of LiteRT's reference, and all of a CMSIS_NN_USE_SINGLE_ROUNDING build. */
static inline int32_t requantize_once(int32_t value, int32_t multiplier, int32_t shift) {
  return (int32_t)(((int64_t)value * multiplier + ((int64_t)1 << (30 - shift))) >> (31 - shift));
}

static inline int8_t stored(int32_t value, int32_t offset, cmsis_nn_activation bounds) {
  value += offset;
  return (int8_t)(value < bounds.min ? bounds.min : value > bounds.max ? bounds.max : value);
}

/* filter [out][kernel height][kernel width][in of a group] */
static arm_cmsis_nn_status arm_convolve_wrapper_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_conv_params *conv_params, const cmsis_nn_per_channel_quant_params *quant_params,
    const cmsis_nn_dims *input_dims, const int8_t *input_data, const cmsis_nn_dims *filter_dims, const int8_t *filter_data,
    const cmsis_nn_dims *bias_dims, const int32_t *bias_data, const cmsis_nn_dims *output_dims, int8_t *output_data) {
  const cmsis_nn_conv_params *p = conv_params;
  int32_t of_group = output_dims->c / (input_dims->c / filter_dims->c);
  (void)ctx, (void)bias_dims;
  for (int32_t n = 0; n < output_dims->n; n++)
    for (int32_t i = 0; i < output_dims->h; i++)
      for (int32_t j = 0; j < output_dims->w; j++)
        for (int32_t o = 0; o < output_dims->c; o++) {
          int32_t sum = bias_data ? bias_data[o] : 0;
          for (int32_t r = 0; r < filter_dims->h; r++)
            for (int32_t s = 0; s < filter_dims->w; s++) {
              int32_t h = i * p->stride.h - p->padding.h + r * p->dilation.h, w = j * p->stride.w - p->padding.w + s * p->dilation.w;
              if (h < 0 || h >= input_dims->h || w < 0 || w >= input_dims->w) continue;
              const int8_t *x = input_data + ((n * input_dims->h + h) * input_dims->w + w) * input_dims->c + o / of_group * filter_dims->c;
              const int8_t *f = filter_data + ((o * filter_dims->h + r) * filter_dims->w + s) * filter_dims->c;
              for (int32_t c = 0; c < filter_dims->c; c++) sum += (x[c] + p->input_offset) * f[c];
            }
          sum = arm_nn_requantize(sum, quant_params->multiplier[o], quant_params->shift[o]);
          *output_data++ = stored(sum, p->output_offset, p->activation);
        }
  return ARM_CMSIS_NN_SUCCESS;
}

/* One image; filter [kernel height][kernel width][out], and out = in * ch_mult. */
static arm_cmsis_nn_status arm_depthwise_conv_wrapper_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_dw_conv_params *dw_conv_params, const cmsis_nn_per_channel_quant_params *quant_params,
    const cmsis_nn_dims *input_dims, const int8_t *input_data, const cmsis_nn_dims *filter_dims, const int8_t *filter_data,
    const cmsis_nn_dims *bias_dims, const int32_t *bias_data, const cmsis_nn_dims *output_dims, int8_t *output_data) {
  const cmsis_nn_dw_conv_params *p = dw_conv_params;
  (void)ctx, (void)bias_dims;
  for (int32_t i = 0; i < output_dims->h; i++)
    for (int32_t j = 0; j < output_dims->w; j++)
      for (int32_t o = 0; o < output_dims->c; o++) {
        int32_t sum = bias_data ? bias_data[o] : 0;
        for (int32_t r = 0; r < filter_dims->h; r++)
          for (int32_t s = 0; s < filter_dims->w; s++) {
            int32_t h = i * p->stride.h - p->padding.h + r * p->dilation.h, w = j * p->stride.w - p->padding.w + s * p->dilation.w;
            if (h < 0 || h >= input_dims->h || w < 0 || w >= input_dims->w) continue;
            sum += (input_data[(h * input_dims->w + w) * input_dims->c + o / p->ch_mult] + p->input_offset) *
                   filter_data[(r * filter_dims->w + s) * output_dims->c + o];
          }
        sum = arm_nn_requantize(sum, quant_params->multiplier[o], quant_params->shift[o]);
        *output_data++ = stored(sum, p->output_offset, p->activation);
      }
  return ARM_CMSIS_NN_SUCCESS;
}

/* filter [out][in] */
static arm_cmsis_nn_status arm_fully_connected_per_channel_s8(
    const cmsis_nn_context *ctx, const cmsis_nn_fc_params *fc_params, const cmsis_nn_per_channel_quant_params *quant_params,
    const cmsis_nn_dims *input_dims, const int8_t *input_data, const cmsis_nn_dims *filter_dims, const int8_t *filter_data,
    const cmsis_nn_dims *bias_dims, const int32_t *bias_data, const cmsis_nn_dims *output_dims, int8_t *output_data) {
  (void)ctx, (void)input_dims, (void)bias_dims;
  for (int32_t n = 0; n < output_dims->n; n++, input_data += filter_dims->n)
    for (int32_t o = 0; o < output_dims->c; o++) {
      int32_t sum = bias_data ? bias_data[o] : 0;
      for (int32_t c = 0; c < filter_dims->n; c++) sum += (input_data[c] + fc_params->input_offset) * filter_data[o * filter_dims->n + c];
      sum = requantize_once(sum, quant_params->multiplier[o], quant_params->shift[o]);
      *output_data++ = stored(sum, fc_params->output_offset, fc_params->activation);
    }
  return ARM_CMSIS_NN_SUCCESS;
}

static arm_cmsis_nn_status arm_elementwise_add_s8(
    const int8_t *input_1_vect, const int8_t *input_2_vect, const int32_t input_1_offset, const int32_t input_1_mult,
    const int32_t input_1_shift, const int32_t input_2_offset, const int32_t input_2_mult, const int32_t input_2_shift,
    const int32_t left_shift, int8_t *output, const int32_t out_offset, const int32_t out_mult, const int32_t out_shift,
    const int32_t out_activation_min, const int32_t out_activation_max, const int32_t block_size) {
  for (int32_t i = 0; i < block_size; i++) {
    int32_t a = arm_nn_requantize((input_1_vect[i] + input_1_offset) * (1 << left_shift), input_1_mult, input_1_shift);
    int32_t b = arm_nn_requantize((input_2_vect[i] + input_2_offset) * (1 << left_shift), input_2_mult, input_2_shift);
    cmsis_nn_activation bounds = {out_activation_min, out_activation_max};
    output[i] = stored(arm_nn_requantize(a + b, out_mult, out_shift), out_offset, bounds);
  }
  return ARM_CMSIS_NN_SUCCESS;
}

static arm_cmsis_nn_status arm_elementwise_mul_s8(
    const int8_t *input_1_vect, const int8_t *input_2_vect, const int32_t input_1_offset, const int32_t input_2_offset, int8_t *output,
    const int32_t out_offset, const int32_t out_mult, const int32_t out_shift, const int32_t out_activation_min,
    const int32_t out_activation_max, const int32_t block_size) {
  for (int32_t i = 0; i < block_size; i++) {
    int32_t product = (input_1_vect[i] + input_1_offset) * (input_2_vect[i] + input_2_offset);
    cmsis_nn_activation bounds = {out_activation_min, out_activation_max};
    output[i] = stored(arm_nn_requantize(product, out_mult, out_shift), out_offset, bounds);
  }
  return ARM_CMSIS_NN_SUCCESS;
}

/* Averages are of the integers as they are stored, ties away from 0; taps in the padding do not count. */
static arm_cmsis_nn_status arm_avgpool_s8(const cmsis_nn_context *ctx, const cmsis_nn_pool_params *pool_params,
                                          const cmsis_nn_dims *input_dims, const int8_t *input_data, const cmsis_nn_dims *filter_dims,
                                          const cmsis_nn_dims *output_dims, int8_t *output_data) {
  const cmsis_nn_pool_params *p = pool_params;
  (void)ctx;
  for (int32_t n = 0; n < input_dims->n; n++)
    for (int32_t i = 0; i < output_dims->h; i++)
      for (int32_t j = 0; j < output_dims->w; j++)
        for (int32_t c = 0; c < output_dims->c; c++) {
          int32_t sum = 0, count = 0;
          for (int32_t h = i * p->stride.h - p->padding.h, r = 0; r < filter_dims->h; r++, h++)
            for (int32_t w = j * p->stride.w - p->padding.w, s = 0; s < filter_dims->w; s++, w++) {
              if (h < 0 || h >= input_dims->h || w < 0 || w >= input_dims->w) continue;
              sum += input_data[((n * input_dims->h + h) * input_dims->w + w) * input_dims->c + c];
              count++;
            }
          if (count == 0) return ARM_CMSIS_NN_ARG_ERROR;
          *output_data++ = stored((sum > 0 ? sum + count / 2 : sum - count / 2) / count, 0, p->activation);
        }
  return ARM_CMSIS_NN_SUCCESS;
}

static arm_cmsis_nn_status arm_max_pool_s8(const cmsis_nn_context *ctx, const cmsis_nn_pool_params *pool_params,
                                           const cmsis_nn_dims *input_dims, const int8_t *src, const cmsis_nn_dims *filter_dims,
                                           const cmsis_nn_dims *output_dims, int8_t *dst) {
  const cmsis_nn_pool_params *p = pool_params;
  (void)ctx;
  for (int32_t n = 0; n < input_dims->n; n++)
    for (int32_t i = 0; i < output_dims->h; i++)
      for (int32_t j = 0; j < output_dims->w; j++)
        for (int32_t c = 0; c < output_dims->c; c++) {
          int32_t best = -128;
          for (int32_t h = i * p->stride.h - p->padding.h, r = 0; r < filter_dims->h; r++, h++)
            for (int32_t w = j * p->stride.w - p->padding.w, s = 0; s < filter_dims->w; s++, w++) {
              if (h < 0 || h >= input_dims->h || w < 0 || w >= input_dims->w) continue;
              int32_t value = src[((n * input_dims->h + h) * input_dims->w + w) * input_dims->c + c];
              best = value > best ? value : best;
            }
          *dst++ = stored(best, 0, p->activation);
        }
  return ARM_CMSIS_NN_SUCCESS;
}

/* CMSIS-NN has no mean: TFLite Micro's. A result is of `count` elements, whose offsets from its first are in `taps`. */
static void mean_s8(const int8_t *x, const int32_t *starts, const int32_t *taps, int8_t *y, int32_t size, int32_t count, int32_t offset,
                    int32_t multiplier, int32_t shift, int32_t output_offset, cmsis_nn_activation bounds) {
  for (int32_t i = 0; i < size; i++) {
    int32_t sum = 0;
    for (int32_t k = 0; k < count; k++) sum += x[starts[i] + taps[k]] + offset;
    y[i] = stored(arm_nn_requantize(sum, multiplier, shift), output_offset, bounds);
  }
}
