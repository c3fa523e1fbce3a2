"""What the kernels for CUDA compute in integers, as data."""

from __future__ import annotations

from dataclasses import replace

from ....target import OpSupport, TargetDescription
from ....target.op_facts import CLAMPS, REDUCTIONS
from ....target.vocabulary import (
    BATCH_MATMUL,
    COMPARE,
    ELEMENTWISE,
    ELEMENTWISE_PAIR,
    FIXED_POINT,
    FLOAT32,
    FLOAT_FUNCTION,
    HALF_AWAY,
    HALF_EVEN,
    HALF_EVEN_STORED,
    HALF_UP,
    INTEGER_INVERSE_SCALE,
    MOVES,
    SELECT,
)

_CONSTANTS = ("uint8", "int8")

_ROUNDINGS = {
    **dict.fromkeys(("add", "subtract"), (HALF_EVEN, HALF_UP, HALF_EVEN_STORED)),
    **dict.fromkeys(("multiply", "mean"), (HALF_EVEN, HALF_EVEN_STORED)),
    **dict.fromkeys(("nn.avg_pool2d", "nn.adaptive_avg_pool2d"), (HALF_EVEN, HALF_EVEN_STORED, HALF_AWAY, FLOAT32)),
    "image.resize2d": (HALF_EVEN, HALF_UP, FLOAT32),
    "divide": (HALF_EVEN, FIXED_POINT),
    "nn.softmax": (HALF_EVEN, INTEGER_INVERSE_SCALE),
    **dict.fromkeys(("quantize", ELEMENTWISE, ELEMENTWISE_PAIR), (HALF_EVEN, HALF_UP, HALF_AWAY)),
}
"""Roundings of results; elsewhere half to even."""


def _with_roundings(*entries: OpSupport) -> tuple[OpSupport, ...]:
    return tuple(replace(entry, rounding=_ROUNDINGS.get(entry.op, (HALF_EVEN,))) for entry in entries)


CUDA = TargetDescription(
    name="cuda",
    ops=_with_roundings(
        *(
            OpSupport(
                op=name,
                weights=("int8", "uint8"),
                weight_range="full",
                fusions=("bias", *CLAMPS, FLOAT_FUNCTION),
                float_output=True,
                sum_output=True,
                per_row_input=True,
            )
            for name in ("nn.conv2d", "matmul")
        ),
        OpSupport(
            op="nn.conv2d_transpose", weights=("int8", "uint8"), weight_range="full", fusions=("bias", *CLAMPS), float_output=True
        ),
        OpSupport(op=BATCH_MATMUL, fusions=CLAMPS, float_output=True, sum_output=True),
        OpSupport(op="add", weights=_CONSTANTS, fusions=(*CLAMPS, FLOAT_FUNCTION), float_input=True),
        *(OpSupport(op=name, weights=_CONSTANTS, fusions=CLAMPS) for name in ("subtract", "multiply")),
        *(OpSupport(op=name, fusions=CLAMPS, same_params=True) for name in ("maximum", "minimum")),
        *(OpSupport(op=name, fusions=CLAMPS) for name in ("nn.avg_pool2d", "nn.adaptive_avg_pool2d", *REDUCTIONS)),
        *(OpSupport(op=name, fusions=CLAMPS) for name in ("nn.group_norm", "divide", SELECT)),
        OpSupport(op="concat", weights=_CONSTANTS),
        *(OpSupport(op=name, same_params=True) for name in ("topk", "nn.max_pool2d", *MOVES, "image.resize2d")),
        *(OpSupport(op=name) for name in ("argmax", "argmin")),
        *(
            OpSupport(op=name)
            for name in (
                "nn.softmax",
                "nn.log_softmax",
                "nn.layer_norm",
                *CLAMPS,
                COMPARE,
                ELEMENTWISE,
                ELEMENTWISE_PAIR,
                "quantize",
                "dequantize",
            )
        ),
    ),
)
"""Integer kernels of a GPU: uint8 and int8 activations, int8 and uint8 weights, int32 accumulators."""
