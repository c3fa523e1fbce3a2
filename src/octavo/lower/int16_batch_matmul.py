"""Rule of the product of two int16 activations; what it matches is what the 8-bit rule matches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import Expr, Var

from ..graph.dataflow import DataflowView
from ..graph.rules import Region, Rejection
from ..kernels.int16_batch_matmul import Int16BatchMatmulSpec, int16_batch_matmul
from ..numerics import requantize_multiplier
from ..numerics.rounding.fixed_point import FixedPointMultiplier, fixed_point_multiplier
from ..numerics.rounding.requantize import Multiplier
from ..target import OpSupport
from .batch_matmul import BatchMatmulForm, Operand, match_batch_matmul
from .context import KernelContext
from .forms import Form, OutputForm
from .rounding import is_fixed_int16


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Int16BatchMatmulForm(Form):
    """a @ b + clamp, with batch axes that broadcast; `multiplier` says how the sums are scaled."""

    base: BatchMatmulForm
    y: OutputForm
    multiplier: Multiplier

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return self.base.macs

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and the rounding."""
        rounding = "reduced" if isinstance(self.multiplier, FixedPointMultiplier) else "half_even"
        return {**self.base.quantize_info(), "rounding": rounding}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        a, b = self.base.a, self.base.b
        spec = Int16BatchMatmulSpec(
            a_shape=a.tensor.shape,
            b_shape=b.tensor.shape,
            a_zero_point=a.tensor.zero_point,
            b_zero_point=b.tensor.zero_point,
            multiplier=self.multiplier,
            output=self.y.spec(),
            threads=context.threads,
        )
        values = [_read(context, inputs, operand) for operand in (a, b)]
        kernel = int16_batch_matmul(spec, isa=context.isa)
        context.put(output, context.call(output.name, kernel, values, self.y.shape, "int16"), is_nhwc=False)


def _read(context: KernelContext, inputs: dict[str, Var], operand: Operand) -> Expr:
    if operand.values is None:
        return context.storage.get(inputs[operand.tensor.name], is_nhwc=False)
    return relax.const(np.ascontiguousarray((operand.values.astype(np.int32) + operand.tensor.relabelling).astype(np.int16)))


def match_int16_batch_matmul(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_batch_matmul` claims, where both operands and the result are int16."""
    found = match_batch_matmul(view, core, replace(support, float_output=False, sum_output=False))
    if isinstance(found, Rejection):
        return found
    base: BatchMatmulForm = found.form
    a, b, y = base.a.tensor, base.b.tensor, base.y
    assert isinstance(y, OutputForm), "nothing else was asked for"
    other = next((tensor for tensor in (a, b, y.tensor) if tensor.kernel_dtype != "int16"), None)
    if other is not None:
        return Rejection(reason=f"{other.name} is {other.params.dtype} and others are int16; kernels take one dtype")
    y_scale = float(y.tensor.params.scale)
    multiplier: Multiplier = requantize_multiplier(base.unit, 1.0, y_scale)
    if is_fixed_int16(view):
        multiplier = fixed_point_multiplier(base.unit / y_scale, "reduced")
        largest = a.shape[-1] * (2**15 + abs(a.zero_point)) * (2**15 + abs(b.zero_point))
        if largest > multiplier.most:
            return Rejection(reason=f"a sum of {core.name} can reach {largest}; its factor allows {multiplier.most} in 64 bits")
    form = Int16BatchMatmulForm(base=base, y=y, multiplier=multiplier)
    return replace(found, attrs={**found.attrs, "quantize_info": form.quantize_info()}, form=form)
