"""The CPU, described as any other target: it is the first vendor."""

from __future__ import annotations

from dataclasses import replace

from .description import OpSupport, TargetDescription
from .op_facts import CLAMPS, REDUCTIONS
from .vocabulary import (
    BATCH_MATMUL,
    COMPARE,
    ELEMENTWISE,
    ELEMENTWISE_PAIR,
    FIXED_POINT,
    FIXED_POINT_WIDE_BIAS,
    FIXED_POINTS,
    FLOAT32,
    FLOAT_FUNCTION,
    GATHERED_MATMUL,
    HALF_AWAY,
    HALF_EVEN,
    HALF_EVEN_STORED,
    HALF_UP,
    INTEGER_INVERSE_SCALE,
    MOVES,
    RECURRENCE,
    SELECT,
    SHIFTS,
    STACKED_MATMUL,
    WEIGHT_BLOCKS,
)

_WEIGHTED_FUSIONS = ("bias", *CLAMPS)

_CONSTANTS = ("uint8", "int8", "int16")

_FIXED_POINT = (FIXED_POINT, FIXED_POINT_WIDE_BIAS)

_IN_INTEGERS = (*SHIFTS, *FIXED_POINTS)
"""The roundings of accelerators, which the CPU simulates."""

_ROUNDINGS = {
    **dict.fromkeys(("add", "subtract"), (HALF_EVEN, HALF_UP, HALF_EVEN_STORED, *_FIXED_POINT)),
    **dict.fromkeys(("multiply", "mean"), (HALF_EVEN, HALF_EVEN_STORED, *_FIXED_POINT)),
    **dict.fromkeys(("nn.avg_pool2d", "nn.adaptive_avg_pool2d"), (HALF_EVEN, HALF_EVEN_STORED, HALF_AWAY, FLOAT32)),
    "image.resize2d": (HALF_EVEN, HALF_UP, FLOAT32, *_FIXED_POINT),
    "nn.softmax": (HALF_EVEN, INTEGER_INVERSE_SCALE, *_FIXED_POINT),
    **dict.fromkeys((STACKED_MATMUL, GATHERED_MATMUL, RECURRENCE), (HALF_EVEN,)),
    **dict.fromkeys(("quantize", ELEMENTWISE, ELEMENTWISE_PAIR), (HALF_EVEN, HALF_UP, HALF_AWAY, *_FIXED_POINT)),
}
"""Roundings of results of 8 bits, and what TFLite's ops of 16 bits say; elsewhere half to even, and TFLite's."""

_WITHOUT_INTEGERS = (
    *("nn.conv2d_transpose", STACKED_MATMUL, GATHERED_MATMUL, RECURRENCE, "image.resize2d"),
    *("nn.softmax", "nn.log_softmax", "nn.layer_norm", "nn.group_norm"),
)
"""Ops that have no kernel in the integers of accelerators."""


def _roundings_of(op: str) -> tuple[str, ...]:
    named = _ROUNDINGS.get(op, (HALF_EVEN, *_FIXED_POINT))
    return named if op in _WITHOUT_INTEGERS else (*named, *_IN_INTEGERS)


_WITH_INT16 = ("uint8", "int8", "int16", "uint16")


def _with_roundings(*entries: OpSupport) -> tuple[OpSupport, ...]:
    return tuple(replace(entry, rounding=_roundings_of(entry.op)) for entry in entries)


CPU = TargetDescription(
    name="cpu",
    ops=_with_roundings(
        *(
            OpSupport(
                op=name,
                activations=_WITH_INT16,
                weights=("int8", "uint8"),
                fusions=(*_WEIGHTED_FUSIONS, FLOAT_FUNCTION),
                float_output=True,
                sum_output=True,
                per_row_input=True,
                weight_blocks=WEIGHT_BLOCKS if name == "matmul" else (),
            )
            for name in ("nn.conv2d", "matmul")
        ),
        OpSupport(op="nn.conv2d_transpose", weights=("int8", "uint8"), fusions=_WEIGHTED_FUSIONS, float_output=True),
        OpSupport(
            op=BATCH_MATMUL,
            activations=_WITH_INT16,
            weights=("uint8", "int8"),
            fusions=CLAMPS,
            float_output=True,
            sum_output=True,
            per_row_input=True,
        ),
        *(
            OpSupport(op=name, weights=("int8", "uint8"), fusions=CLAMPS, float_output=True, per_row_input=True)
            for name in (STACKED_MATMUL, GATHERED_MATMUL)
        ),
        OpSupport(op=RECURRENCE, weights=("int8",), weight_schemes=("symmetric",), float_output=True, per_row_input=True),
        OpSupport(op="add", activations=_WITH_INT16, weights=_CONSTANTS, fusions=(*CLAMPS, FLOAT_FUNCTION), float_input=True),
        *(OpSupport(op=name, activations=_WITH_INT16, weights=_CONSTANTS, fusions=CLAMPS) for name in ("subtract", "multiply")),
        *(OpSupport(op=name, activations=_WITH_INT16, fusions=CLAMPS, same_params=True) for name in ("maximum", "minimum")),
        *(
            OpSupport(op=name, activations=_WITH_INT16, fusions=CLAMPS)
            for name in ("nn.avg_pool2d", "nn.adaptive_avg_pool2d", *REDUCTIONS, SELECT)
        ),
        *(OpSupport(op=name) for name in ("argmax", "argmin", "nn.log_softmax", "nn.layer_norm")),
        *(OpSupport(op=name, fusions=CLAMPS) for name in ("nn.group_norm", "divide")),
        OpSupport(op="concat", activations=_WITH_INT16, weights=_CONSTANTS),
        *(
            OpSupport(op=name, activations=_WITH_INT16, weights=_CONSTANTS if name == "take" else (), same_params=True)
            for name in ("topk", "nn.max_pool2d", *MOVES, "image.resize2d")
        ),
        *(
            OpSupport(op=name, activations=_WITH_INT16)
            for name in ("nn.softmax", *CLAMPS, ELEMENTWISE, ELEMENTWISE_PAIR, COMPARE, "quantize", "dequantize")
        ),
    ),
)
"""Integer kernels of the CPU: uint8/int8 activations, int8/uint8 weights, int32 accumulators; for most ops int16 activations,
too, with sums of 64 bits where they need them."""
