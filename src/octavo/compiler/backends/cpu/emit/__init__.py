"""Emitters: one composite op in, kernel calls out. Importing this package registers all of them."""

from ..emitters import emitter_of
from . import (
    attention,
    channels,
    conv2d,
    elementwise,
    float_conv2d,
    float_elementwise,
    half_float,
    lookup,
    matmul,
    move,
    norms,
    observe,
    pool2d,
    quantize,
    recurrence,
    reduce,
    resize,
)

__all__ = [
    "attention",
    "channels",
    "conv2d",
    "elementwise",
    "emitter_of",
    "float_conv2d",
    "float_elementwise",
    "half_float",
    "lookup",
    "matmul",
    "move",
    "norms",
    "observe",
    "pool2d",
    "quantize",
    "recurrence",
    "reduce",
    "resize",
]
