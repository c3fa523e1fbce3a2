"""How LiteRT rounds the ops of a .tflite file where it does not round half to even about the zero point. Converts nothing."""

from __future__ import annotations

from dataclasses import dataclass

from ...target.vocabulary import (
    FIXED_POINT,
    FIXED_POINT_TWICE_AWAY,
    FIXED_POINT_WIDE_BIAS,
    HALF_AWAY,
    HALF_EVEN,
    HALF_EVEN_STORED,
    HALF_UP,
)
from .source import TfliteGraph, TfliteOp

_COMPARISONS = ("EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")
_OF_8_BITS = {
    "ADD": HALF_UP,
    "ADD_N": HALF_UP,
    "AVERAGE_POOL_2D": HALF_AWAY,
    "BATCH_MATMUL": FIXED_POINT_TWICE_AWAY,
    "L2_NORMALIZATION": FIXED_POINT,
    "LEAKY_RELU": HALF_UP,
    "MEAN": HALF_EVEN_STORED,
    "PRELU": HALF_UP,
    "QUANTIZE": HALF_UP,
    "RESIZE_BILINEAR": HALF_UP,
    "SUB": HALF_UP,
}
_OF_ANY_WIDTH = ("AVERAGE_POOL_2D",)
_WITH_BIAS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")


@dataclass(frozen=True, kw_only=True, slots=True)
class OpRounding:
    """What the dequantizes of an op's operands and the quantizes of its results say."""

    operands: str = HALF_EVEN
    results: str = HALF_EVEN


def op_rounding(op: TfliteOp, graph: TfliteGraph) -> OpRounding:
    """Return how LiteRT rounds an op."""
    tensors = [graph.tensors[index] for index in (*op.inputs, *op.outputs) if index >= 0]
    if op.name in _COMPARISONS:
        return OpRounding(operands=FIXED_POINT if tensors[0].scale else HALF_EVEN)
    if any(tensor.scale and tensor.dtype == "int16" for tensor in tensors) and op.name not in _OF_ANY_WIDTH:
        is_wide = op.name in _WITH_BIAS and op.inputs[-1] >= 0 and graph.tensors[op.inputs[-1]].dtype == "int64"
        return OpRounding(results=FIXED_POINT_WIDE_BIAS if is_wide else FIXED_POINT)
    # LiteRT's QUANTIZE of real numbers is no change of parameters.
    return OpRounding(results=_OF_8_BITS.get(op.name, HALF_EVEN) if tensors[0].scale else HALF_EVEN)
