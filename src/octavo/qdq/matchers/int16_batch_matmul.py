"""Rule of the product of two int16 activations; what it matches is what the 8-bit rule matches."""

from __future__ import annotations

from dataclasses import replace

from tvm.relax import Var

from ...composites.base import QuantizedOutput
from ...composites.weighted import BatchMatmulOp, Int16BatchMatmulOp
from ...graph.dataflow import DataflowView
from ...graph.rules import Region, Rejection
from ...numerics import requantize_multiplier
from ...numerics.rounding.fixed_point import fixed_point_multiplier
from ...numerics.rounding.requantize import Multiplier
from ...target import OpSupport
from ..rounding import is_fixed_int16
from .batch_matmul import match_batch_matmul


def match_int16_batch_matmul(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_batch_matmul` claims, where both operands and the result are int16."""
    found = match_batch_matmul(view, core, replace(support, float_output=False, sum_output=False))
    if isinstance(found, Rejection):
        return found
    base: BatchMatmulOp = found.form
    a, b, y = base.a.tensor, base.b.tensor, base.y
    assert isinstance(y, QuantizedOutput), "nothing else was asked for"
    other = next((tensor for tensor in (a, b, y.tensor) if tensor.kernel_dtype != "int16"), None)
    if other is not None:
        return Rejection(reason=f"{other.name} is {other.params.dtype} and others are int16; kernels take one dtype")
    y_scale = float(y.tensor.params.scale)
    multiplier: Multiplier = requantize_multiplier(base.unit, 1.0, y_scale)
    if is_fixed_int16(view):
        multiplier = fixed_point_multiplier(base.unit / y_scale, "reduced")
        largest = a.shape[-1] * (2**15 + abs(a.zero_point)) * (2**15 + abs(b.zero_point))
        if largest > multiplier.max_value:
            return Rejection(
                reason=f"a sum of {core.name} can reach {largest}; its factor allows {multiplier.max_value} in 64 bits"
            )
    form = Int16BatchMatmulOp(base=base, y=y, multiplier=multiplier)
    return replace(found, attrs={**found.attrs, "quantize_info": form.quantize_info()}, form=form)
