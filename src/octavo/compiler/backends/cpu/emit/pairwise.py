"""Kernel calls of composites: pairwise. Reads no QDQ graph."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import Expr, Var

from .....ir.composites.base import QuantizedTensor
from .....ir.composites.elementwise import Operand, PairwiseOp, float_sum_of
from .....ir.composites.outputs import output_spec
from .....numerics.rounding.fixed_point import FIXED_POINT_ROUNDINGS
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import PairwiseSpec, Side
from ..storage import TO_NHWC


@emits(PairwiseOp)
def emit_pairwise(op: PairwiseOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    is_nhwc = is_pairwise_nhwc(op, context, inputs)
    a, b = (_read(context, inputs, operand, is_nhwc=is_nhwc) for operand in (op.a, op.b))
    shape = op.y.tensor.shape
    shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
    tensors = op.a.tensor, op.b.tensor, op.y.tensor
    sum_constants, relabelling = None, 0
    if op.kind in ("add", "sub") and op.rounding not in FIXED_POINT_ROUNDINGS:
        sum_constants, relabelling = float_sum_of(op.rounding, *tensors, subtract=op.kind == "sub")
    spec = PairwiseSpec(
        kind=op.kind,
        a=side_of(tensors[0], shape_of(a)),
        b=side_of(tensors[1], shape_of(b)),
        out_scale=float(tensors[2].params.scale),
        output=output_spec(op.y),
        rounding=op.rounding,
        float_sum=sum_constants,
        relabelling=relabelling,
        threads=context.threads,
    )
    kernel = kernels.pairwise(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, [a, b], shape, op.y.kernel_dtype), is_nhwc=is_nhwc)


def side_of(tensor: QuantizedTensor, shape: tuple[int, ...]) -> Side:
    """Return an operand as kernels know it; `shape` is that in which it lies."""
    scale = float(tensor.params.scale)
    return Side(shape=shape, dtype=tensor.kernel_dtype, scale=scale, zero_point=tensor.zero_point)


def is_pairwise_nhwc(op: PairwiseOp, context: KernelContext, inputs: dict[str, Var]) -> bool:
    """Whether to compute in the permuted layout: where an operand lies so, and every variable has four dimensions."""
    variables = [operand for operand in (op.a, op.b) if operand.values is None]
    if len(op.y.tensor.shape) != 4 or any(len(operand.tensor.shape) != 4 for operand in variables):
        return False
    return any(context.storage.is_kept_nhwc(inputs[operand.tensor.name]) for operand in variables)


def _read(context: KernelContext, inputs: dict[str, Var], operand: Operand, *, is_nhwc: bool) -> Expr:
    if operand.values is None:
        return context.storage.get(inputs[operand.tensor.name], is_nhwc=is_nhwc)
    values = operand.tensor.kernel_integers(operand.values)
    if is_nhwc:
        values = values.reshape((1,) * (4 - values.ndim) + values.shape).transpose(TO_NHWC)
    return relax.const(np.ascontiguousarray(values))
