"""The CPU, described as any other target: it is the first vendor."""

from __future__ import annotations

from .description import BATCH_MATMUL, ELEMENTWISE, ELEMENTWISE_PAIR, OpSupport, TargetDescription

_WEIGHTED_FUSIONS = ("bias", "nn.relu", "clip")

_CLAMPS = ("nn.relu", "clip")

_MOVES = ("strided_slice", "take", "flip", "tile", "repeat", "nn.pad", "image.resize2d")

CPU = TargetDescription(
    name="cpu",
    isas=("x86.avx512_vnni", "generic"),
    ops=(
        OpSupport(op="nn.conv2d", weights=("int8", "uint8"), fusions=_WEIGHTED_FUSIONS, float_output=True),
        OpSupport(op="matmul", weights=("int8", "uint8"), fusions=_WEIGHTED_FUSIONS, float_output=True),
        OpSupport(op="add", fusions=_CLAMPS),
        OpSupport(op="subtract", fusions=_CLAMPS),
        OpSupport(op="multiply", fusions=_CLAMPS),
        OpSupport(op="maximum", fusions=_CLAMPS, same_params=True),
        OpSupport(op="minimum", fusions=_CLAMPS, same_params=True),
        OpSupport(op="nn.avg_pool2d", fusions=_CLAMPS),
        OpSupport(op="nn.adaptive_avg_pool2d", fusions=_CLAMPS),
        OpSupport(op="mean", fusions=_CLAMPS),
        OpSupport(op="sum", fusions=_CLAMPS),
        OpSupport(op="max", fusions=_CLAMPS),
        OpSupport(op="min", fusions=_CLAMPS),
        OpSupport(op="argmax"),
        OpSupport(op="argmin"),
        OpSupport(op="nn.max_pool2d", same_params=True),
        OpSupport(op="nn.softmax"),
        OpSupport(op="nn.log_softmax"),
        OpSupport(op="divide", fusions=_CLAMPS),
        OpSupport(op="concat"),
        OpSupport(op="reshape", same_params=True),
        OpSupport(op="nn.batch_flatten", same_params=True),
        OpSupport(op="flatten", same_params=True),
        OpSupport(op="squeeze", same_params=True),
        OpSupport(op="expand_dims", same_params=True),
        OpSupport(op="permute_dims", same_params=True),
        *(OpSupport(op=name, same_params=True) for name in _MOVES),
        OpSupport(op="nn.relu"),
        OpSupport(op="clip"),
        OpSupport(op=BATCH_MATMUL, fusions=_CLAMPS),
        OpSupport(op=ELEMENTWISE),
        OpSupport(op=ELEMENTWISE_PAIR),
        OpSupport(op="quantize"),
        OpSupport(op="dequantize"),
    ),
)
"""Integer kernels of the CPU: uint8/int8 activations, int8/uint8 weights, int32 accumulators, half-even rounding."""
