"""Numerics: the one definition of every integer operation, in NumPy. Imports no TVM."""

from .add import AddParameters, add, add_parameters
from .affine import dequantize, quantize, relabel, requantize_tensor
from .affine_rows import AffineRows, affine_rows
from .batch_matmul import BATCH_MATMUL_MAX_INNER, batch_matmul, batch_matmul_accumulate
from .bounds import check_accumulator, max_accumulator
from .concat import concat
from .conv2d import conv2d, conv2d_accumulate, conv2d_transpose_accumulate, matmul, matmul_accumulate
from .elementwise import ELEMENTWISE
from .extremes import larger, smaller
from .float_mean import FloatMeanParameters, float_mean
from .float_resize import FloatTaps, float_resize_bilinear, float_taps
from .float_sum import FloatSumParameters, float_sum, float_sum_parameters
from .fused import fused_multiply_add
from .gather import gather
from .group_norm import GROUP_NORM_MAX_VALUES, group_norm
from .l2_normalize import L2_MAX_COLUMNS, l2_normalize, l2_normalize_fixed
from .layer_norm import LAYER_NORM_MAX_COLUMNS, layer_norm
from .log_softmax import LOG_SOFTMAX_LEAST_SCALE, LogSoftmaxParameters, log_softmax, log_softmax_parameters
from .lookup import lookup, lookup_table
from .mul import mul, sub, sub_parameters
from .pair_lookup import PAIR_LOOKUP_MAX_ROWS, every_real, pair_lookup
from .pool2d import avg_pool2d, float_avg_pool2d, global_avg_pool2d, max_pool2d
from .prelu import prelu_table
from .quant_params import INTEGER_RANGE, Granularity, PerAxis, PerTensor, QuantParams
from .reduce import place_of_extreme, reduce_extreme, reduce_sum
from .requantize import requantize, requantize_multiplier
from .resize import FRACTION_BITS, LinearTaps, linear_taps, nearest_indices, resize_bilinear
from .scaled import scaled
from .softmax import SOFTMAX_MAX_COLUMNS, softmax, softmax_table
from .topk import top_places

__all__ = [
    "BATCH_MATMUL_MAX_INNER",
    "ELEMENTWISE",
    "FRACTION_BITS",
    "GROUP_NORM_MAX_VALUES",
    "INTEGER_RANGE",
    "L2_MAX_COLUMNS",
    "LAYER_NORM_MAX_COLUMNS",
    "LOG_SOFTMAX_LEAST_SCALE",
    "PAIR_LOOKUP_MAX_ROWS",
    "SOFTMAX_MAX_COLUMNS",
    "AddParameters",
    "AffineRows",
    "FloatMeanParameters",
    "FloatSumParameters",
    "FloatTaps",
    "Granularity",
    "LinearTaps",
    "LogSoftmaxParameters",
    "PerAxis",
    "PerTensor",
    "QuantParams",
    "add",
    "add_parameters",
    "affine_rows",
    "avg_pool2d",
    "batch_matmul",
    "batch_matmul_accumulate",
    "check_accumulator",
    "concat",
    "conv2d",
    "conv2d_accumulate",
    "conv2d_transpose_accumulate",
    "dequantize",
    "every_real",
    "float_avg_pool2d",
    "float_mean",
    "float_resize_bilinear",
    "float_sum",
    "float_sum_parameters",
    "float_taps",
    "fused_multiply_add",
    "gather",
    "global_avg_pool2d",
    "group_norm",
    "l2_normalize",
    "l2_normalize_fixed",
    "larger",
    "layer_norm",
    "linear_taps",
    "log_softmax",
    "log_softmax_parameters",
    "lookup",
    "lookup_table",
    "matmul",
    "matmul_accumulate",
    "max_accumulator",
    "max_pool2d",
    "mul",
    "nearest_indices",
    "pair_lookup",
    "place_of_extreme",
    "prelu_table",
    "quantize",
    "reduce_extreme",
    "reduce_sum",
    "relabel",
    "requantize",
    "requantize_multiplier",
    "requantize_tensor",
    "resize_bilinear",
    "scaled",
    "smaller",
    "softmax",
    "softmax_table",
    "sub",
    "sub_parameters",
    "top_places",
]
