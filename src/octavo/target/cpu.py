"""The CPU, described as any other target: it is the first vendor."""

from __future__ import annotations

from .description import BATCH_MATMUL, COMPARE, ELEMENTWISE, ELEMENTWISE_PAIR, SELECT, OpSupport, TargetDescription

_WEIGHTED_FUSIONS = ("bias", "nn.relu", "clip")

_CLAMPS = ("nn.relu", "clip")

_CONSTANTS = ("uint8", "int8")

_MOVES = ("strided_slice", "take", "flip", "tile", "repeat", "nn.pad", "image.resize2d")

_WITH_INT16 = ("uint8", "int8", "int16", "uint16")

CPU = TargetDescription(
    name="cpu",
    isas=("x86.avx512_vnni", "x86.avx_vnni", "x86.avx2", "generic"),
    extensions=("x86.avx512_bf16",),
    ops=(
        *(
            OpSupport(
                op=name,
                activations=_WITH_INT16,
                weights=("int8", "uint8"),
                fusions=_WEIGHTED_FUSIONS,
                float_output=True,
                sum_output=True,
            )
            for name in ("nn.conv2d", "matmul")
        ),
        OpSupport(op="nn.conv2d_transpose", weights=("int8", "uint8"), fusions=_WEIGHTED_FUSIONS, float_output=True),
        OpSupport(op="add", activations=_WITH_INT16, weights=_CONSTANTS, fusions=_CLAMPS),
        OpSupport(op="subtract", activations=_WITH_INT16, weights=_CONSTANTS, fusions=_CLAMPS),
        OpSupport(op="multiply", activations=_WITH_INT16, weights=_CONSTANTS, fusions=_CLAMPS),
        OpSupport(op="maximum", activations=_WITH_INT16, fusions=_CLAMPS, same_params=True),
        OpSupport(op="minimum", activations=_WITH_INT16, fusions=_CLAMPS, same_params=True),
        OpSupport(op="nn.avg_pool2d", activations=_WITH_INT16, fusions=_CLAMPS),
        OpSupport(op="nn.adaptive_avg_pool2d", activations=_WITH_INT16, fusions=_CLAMPS),
        OpSupport(op="mean", activations=_WITH_INT16, fusions=_CLAMPS),
        OpSupport(op="sum", activations=_WITH_INT16, fusions=_CLAMPS),
        OpSupport(op="max", activations=_WITH_INT16, fusions=_CLAMPS),
        OpSupport(op="min", activations=_WITH_INT16, fusions=_CLAMPS),
        OpSupport(op="argmax"),
        OpSupport(op="argmin"),
        OpSupport(op="topk", activations=_WITH_INT16, same_params=True),
        OpSupport(op="nn.max_pool2d", activations=_WITH_INT16, same_params=True),
        OpSupport(op="nn.softmax", activations=_WITH_INT16),
        OpSupport(op="nn.log_softmax"),
        OpSupport(op="nn.layer_norm"),
        OpSupport(op="nn.group_norm", fusions=_CLAMPS),
        OpSupport(op="divide", fusions=_CLAMPS),
        OpSupport(op="concat", activations=_WITH_INT16, weights=_CONSTANTS),
        OpSupport(op="reshape", activations=_WITH_INT16, same_params=True),
        OpSupport(op="nn.batch_flatten", activations=_WITH_INT16, same_params=True),
        OpSupport(op="flatten", activations=_WITH_INT16, same_params=True),
        OpSupport(op="squeeze", activations=_WITH_INT16, same_params=True),
        OpSupport(op="expand_dims", activations=_WITH_INT16, same_params=True),
        OpSupport(op="permute_dims", activations=_WITH_INT16, same_params=True),
        *(OpSupport(op=name, activations=_WITH_INT16, same_params=True) for name in _MOVES),
        OpSupport(op="nn.relu", activations=_WITH_INT16),
        OpSupport(op="clip", activations=_WITH_INT16),
        OpSupport(op=BATCH_MATMUL, activations=_WITH_INT16, fusions=_CLAMPS, float_output=True, sum_output=True),
        OpSupport(op=ELEMENTWISE, activations=_WITH_INT16),
        OpSupport(op=ELEMENTWISE_PAIR, activations=_WITH_INT16),
        OpSupport(op=COMPARE, activations=_WITH_INT16),
        OpSupport(op=SELECT, activations=_WITH_INT16, fusions=_CLAMPS),
        OpSupport(op="quantize", activations=_WITH_INT16),
        OpSupport(op="dequantize", activations=_WITH_INT16),
    ),
)
"""Integer kernels of the CPU: uint8/int8 activations, int8/uint8 weights, int32 accumulators, half-even rounding; for most ops
int16 activations, too, with sums of 64 bits where they need them."""
