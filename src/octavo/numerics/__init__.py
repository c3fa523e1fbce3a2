"""Numerics: the one definition of every integer operation, in NumPy. Imports no TVM."""

from .bounds import check_accumulator, max_accumulator
from .conv2d import conv2d, conv2d_accumulate, matmul, matmul_accumulate
from .quant_params import INTEGER_RANGE, Granularity, PerAxis, PerTensor, QuantParams
from .requantize import requantize, requantize_multiplier

__all__ = [
    "INTEGER_RANGE",
    "Granularity",
    "PerAxis",
    "PerTensor",
    "QuantParams",
    "check_accumulator",
    "conv2d",
    "conv2d_accumulate",
    "matmul",
    "matmul_accumulate",
    "max_accumulator",
    "requantize",
    "requantize_multiplier",
]
