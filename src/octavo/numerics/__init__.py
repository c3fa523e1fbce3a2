"""Numerics: the one definition of every integer operation, in NumPy. Imports no TVM."""

from .affine import dequantize, quantize, relabel, requantize_tensor
from .floats.elementwise import ELEMENTWISE
from .quant_params import INTEGER_RANGE, Granularity, PerAxis, PerBlock, PerTensor, QuantParams, bias_params
from .quantized.accumulator_bounds import check_accumulator, max_accumulator
from .quantized.affine_rows import AffineRows, affine_rows
from .quantized.binary import (
    AddParameters,
    FloatSumParameters,
    add,
    add_parameters,
    float_sum,
    float_sum_parameters,
    maximum,
    minimum,
    mul,
)
from .quantized.conv2d import conv2d, conv2d_accumulate, conv2d_transpose_accumulate
from .quantized.data_movement import concat, gather
from .quantized.float_mean import FloatMeanParameters, float_mean
from .quantized.log_softmax import LOG_SOFTMAX_MIN_SCALE, LogSoftmaxParameters, log_softmax, log_softmax_parameters
from .quantized.lookup import PAIR_LOOKUP_MAX_ROWS, lookup, lookup_table, pair_lookup, real_values
from .quantized.matmul import BATCH_MATMUL_MAX_INNER, batch_matmul, batch_matmul_accumulate, matmul, matmul_accumulate
from .quantized.normalization import (
    GROUP_NORM_MAX_VALUES,
    L2_MAX_COLUMNS,
    LAYER_NORM_MAX_COLUMNS,
    group_norm,
    l2_normalize,
    l2_normalize_fixed,
    layer_norm,
)
from .quantized.pool2d import avg_pool2d, float_avg_pool2d, global_avg_pool2d, max_pool2d
from .quantized.reduce import arg_reduce, reduce_extreme, reduce_sum, top_k_indices
from .quantized.rescale import prelu_table
from .quantized.resize import (
    FRACTION_BITS,
    FloatTaps,
    LinearTaps,
    float_resize_bilinear,
    float_taps,
    linear_taps,
    nearest_indices,
    resize_bilinear,
)
from .quantized.softmax import SOFTMAX_MAX_COLUMNS, softmax, softmax_table
from .rounding.fused_multiply_add import fused_multiply_add
from .rounding.requantize import dequantize_accumulator, requantize, requantize_multiplier
from .window import UNIT_WINDOW, Window

__all__ = [
    "BATCH_MATMUL_MAX_INNER",
    "ELEMENTWISE",
    "FRACTION_BITS",
    "GROUP_NORM_MAX_VALUES",
    "INTEGER_RANGE",
    "L2_MAX_COLUMNS",
    "LAYER_NORM_MAX_COLUMNS",
    "LOG_SOFTMAX_MIN_SCALE",
    "PAIR_LOOKUP_MAX_ROWS",
    "SOFTMAX_MAX_COLUMNS",
    "UNIT_WINDOW",
    "AddParameters",
    "AffineRows",
    "FloatMeanParameters",
    "FloatSumParameters",
    "FloatTaps",
    "Granularity",
    "LinearTaps",
    "LogSoftmaxParameters",
    "PerAxis",
    "PerBlock",
    "PerTensor",
    "QuantParams",
    "Window",
    "add",
    "add_parameters",
    "affine_rows",
    "arg_reduce",
    "avg_pool2d",
    "batch_matmul",
    "batch_matmul_accumulate",
    "bias_params",
    "check_accumulator",
    "concat",
    "conv2d",
    "conv2d_accumulate",
    "conv2d_transpose_accumulate",
    "dequantize",
    "dequantize_accumulator",
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
    "maximum",
    "minimum",
    "mul",
    "nearest_indices",
    "pair_lookup",
    "prelu_table",
    "quantize",
    "real_values",
    "reduce_extreme",
    "reduce_sum",
    "relabel",
    "requantize",
    "requantize_multiplier",
    "requantize_tensor",
    "resize_bilinear",
    "softmax",
    "softmax_table",
    "top_k_indices",
]
