"""Which products whose sums may leave their accumulator Octavo's own kernels compute; a vendor's code may compute all of them."""

from __future__ import annotations

from ...numerics import INTEGER_RANGE, max_accumulator
from ...numerics.quantized.accumulator_bounds import INT32_MAX
from ..composites.base import WIDE, CompositeOp, QuantizedOutput, QuantizedTensor
from ..composites.weighted import BatchMatmulOp, Conv2dTransposeOp, WeightedOp
from ..graph.rules import Rejection


def uncomputed_overflow(op: CompositeOp) -> Rejection | None:
    """Return why no kernel computes what an accumulator makes of sums that leave it; None where one does."""
    if not isinstance(op, (WeightedOp, Conv2dTransposeOp, BatchMatmulOp)) or op.narrow is None:
        return None
    word = f"its int{op.accumulator_bits} accumulator {op.narrow.overflow}"
    if not isinstance(op.y, QuantizedOutput):
        return Rejection(reason=f"{word}; kernels do so where the result is quantized alone", matched=True)
    if isinstance(op, BatchMatmulOp):
        return None
    x, weight = op.x, op.weight
    if not isinstance(x, QuantizedTensor) or x.params.scale.ndim:
        return Rejection(reason=f"{word}; kernels do so where its input has one constant scale alone", matched=True)
    if weight.real_bias is not None:
        return Rejection(reason=f"{word}; its bias {weight.bias_name} is float, expected int32", matched=True)
    if x.params.dtype in WIDE:
        return None
    zero_point, bounds = int(x.params.zero_point), INTEGER_RANGE[x.params.dtype]
    reach = max_accumulator(weight.values, weight.zero_point, weight.bias, zero_point, *bounds)
    largest = int(reach.max(initial=0))
    if largest <= INT32_MAX:
        return None
    return Rejection(reason=f"{word}; kernels add in int32, and its sums can reach {largest}, above {INT32_MAX}", matched=True)
