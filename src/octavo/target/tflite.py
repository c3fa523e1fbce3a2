"""LiteRT's integer kernels, described as any other target: what a quantized .tflite file can say.

Int8 is asymmetric, with symmetric weights of one scale for each output channel; of 16 bits activations are symmetric, weights
stay int8. The scales that single functions fix (softmax, sigmoid) are not here: a description knows no functions by name, see
`export.tflite.kernels`.
"""

from __future__ import annotations

from .description import OpSupport, TargetDescription
from .op_facts import CLAMPS, movers
from .vocabulary import (
    BATCH_MATMUL,
    ELEMENTWISE,
    FIXED_POINT,
    FIXED_POINT_TWICE_AWAY,
    FIXED_POINT_WIDE_BIAS,
    HALF_AWAY,
    HALF_EVEN,
    HALF_EVEN_STORED,
    HALF_UP,
    OPS,
)

_ROUNDINGS = {
    "add": (HALF_UP,),
    "subtract": (HALF_UP,),
    "mean": (HALF_EVEN_STORED,),
    "nn.avg_pool2d": (HALF_AWAY,),
    "image.resize2d": (HALF_UP,),
    BATCH_MATMUL: (FIXED_POINT_TWICE_AWAY,),
    ELEMENTWISE: (HALF_EVEN, HALF_UP),
}
"""Of int8 results, where they are not half to even; as `frontends.tflite.rounding` reads them."""
_WEIGHTED = ("nn.conv2d", "matmul")
_WITH_CONSTANTS = ("add", "subtract", "multiply")
_MOVES = (
    *(op for op in movers("view", "transpose", "reverse", "repeat", "select", "pad", "join") if op in OPS),
    *("nn.max_pool2d", "nn.avg_pool2d", "maximum", "minimum", "max", "min", "image.resize2d"),
)
"""What keeps scale and zero point in TFLite; LiteRT checks it, or copies integers as they are."""
_OTHERS = (BATCH_MATMUL, "mean", "sum", "nn.softmax", ELEMENTWISE, *CLAMPS)


def _description(name: str, dtype: str, roundings: dict[str, tuple[str, ...]], usual: tuple[str, ...]) -> TargetDescription:
    def entry(op: str, **fields: object) -> OpSupport:
        common: dict[str, object] = {
            "activations": (dtype,),
            "activation_schemes": ("symmetric", "asymmetric") if dtype == "int8" else ("symmetric",),
            "rounding": roundings.get(op, usual),
        }
        return OpSupport(op=op, **{**common, **fields})  # pyright: ignore[reportArgumentType]: fields of OpSupport by name

    symmetric = {"weights": ("int8",), "weight_schemes": ("symmetric",)}
    return TargetDescription(
        name=name,
        op_by_op=True,
        activation_layout="NHWC",
        ops=(
            *(entry(op, fusions=("bias", *CLAMPS), **symmetric) for op in _WEIGHTED),
            *(entry(op, fusions=CLAMPS, weights=(dtype,)) for op in _WITH_CONSTANTS),
            *(entry(op, fusions=CLAMPS if op.startswith("nn.") and "pool" in op else (), same_params=True) for op in _MOVES),
            *(entry(op) for op in _OTHERS),
            entry("quantize", rounding=usual if dtype == "int8" else (HALF_EVEN, FIXED_POINT)),
            entry("dequantize"),
        ),
    )


TFLITE_INT8 = _description("tflite", "int8", _ROUNDINGS, (HALF_EVEN,))
_WIDE = (FIXED_POINT_WIDE_BIAS, FIXED_POINT)
TFLITE_INT16 = _description(
    "tflite16x8",
    "int16",
    {"nn.avg_pool2d": (HALF_AWAY,), "nn.conv2d": _WIDE, "matmul": _WIDE},
    (FIXED_POINT,),
)
"""Activations of 16 bits beside weights of 8; biases have 64."""
