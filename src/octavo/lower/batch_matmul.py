"""Rule of the product of two activations: matmul of quantized values of which neither is a constant matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import BatchMatmulSpec
from ..numerics import BATCH_MATMUL_MAX_INNER, requantize_multiplier
from ..target import OpSupport
from .context import KernelContext
from .forms import Form, OutputForm, TensorForm
from .tail import check_activation, follow_to_quantize
from .values import constant_value, dequantized


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Operand:
    """One of the two operands: a variable's tensor, or a constant in `values` (its own integers)."""

    tensor: TensorForm
    values: npt.NDArray[Any] | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BatchMatmulForm(Form):
    """a @ b + clamp, with batch axes that broadcast."""

    a: Operand
    b: Operand
    y: OutputForm

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return math.prod(self.y.shape) * self.a.tensor.shape[-1]

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input0": self.a.tensor.info(), "input1": self.b.tensor.info(), "output": self.y.info()}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        a, b, y = self.a.tensor, self.b.tensor, self.y.tensor
        spec = BatchMatmulSpec(
            a_batch=a.shape[:-2],
            b_batch=b.shape[:-2],
            rows=a.shape[-2],
            inner=a.shape[-1],
            columns=b.shape[-1],
            a_zero_point=a.zero_point,
            b_zero_point=b.zero_point,
            multiplier=float(requantize_multiplier(float(a.params.scale), float(b.params.scale), float(y.params.scale))),
            output=self.y.spec(),
            threads=context.threads,
        )
        kernel = kernels.batch_matmul(spec, isa=context.isa)
        values = [_read(context, inputs, operand) for operand in (self.a, self.b)]
        context.put(output, context.call(output.name, kernel, values, y.shape), is_nhwc=False)


def match_batch_matmul(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(clamp(matmul(dequantize(a), dequantize(b)))); one of them may be a quantized constant."""
    call = call_to(view.definition(core), "matmul")
    assert call is not None
    operands: list[Operand] = []
    members: dict[Var, None] = {}
    variables: list[Var] = []
    for arg in call.args:
        side = dequantized(view, arg)
        if side is None:
            return Rejection(reason=f"operand {getattr(arg, 'name', 'constant')} is float: no dequantize with constant scale")
        constant, shape = constant_value(view, side.source), static_shape(side.source)
        name = getattr(side.source, "name", "constant")
        if shape is None or len(shape) < 2 or 0 in shape:
            return Rejection(reason=f"operand {name} of shape {shape}: the kernel takes static shapes of at least two axes")
        problem = check_activation(name, side.params, support)
        if problem is not None:
            return problem
        if constant is not None and len(shape) == 2:
            return Rejection(reason=f"operand {name} is a constant matrix, which another rule takes")
        members.update(dict.fromkeys(() if constant is None else constant.members))
        members.update(dict.fromkeys(() if side.var is None else (side.var,)))
        values = None if constant is None else constant.values
        operands.append(Operand(tensor=TensorForm(name=name, shape=shape, params=side.params), values=values))
        if values is None and isinstance(side.source, Var):
            variables.append(side.source)
    inner = operands[0].tensor.shape[-1]
    if not variables:
        return Rejection(reason="both operands are constants; fold them")
    if inner > BATCH_MATMUL_MAX_INNER:
        return Rejection(reason=f"sums of {inner} products may exceed int32; at most {BATCH_MATMUL_MAX_INNER} are safe")
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    form = BatchMatmulForm(a=operands[0], b=operands[1], y=tail.form)
    return Region(
        core=core,
        output=tail.output,
        members=(*members, core, *tail.members),
        inputs=tuple(dict.fromkeys(variables)),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )


def _read(context: KernelContext, inputs: dict[str, Var], operand: Operand) -> Expr:
    if operand.values is None:
        return context.storage.get(inputs[operand.tensor.name], is_nhwc=False)
    values = (operand.values.astype(np.int16) + operand.tensor.relabelling).astype(np.uint8)
    return relax.const(np.ascontiguousarray(values))
