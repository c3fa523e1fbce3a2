"""Kernel calls of composites: pairwise. Reads no QDQ graph."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import Expr, Var

from ....composites.elementwise import Operand, PairwiseOp, as_bytes, float_sum_of
from ....composites.outputs import output_spec
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import PairwiseSpec
from ..storage import TO_NHWC


@emits(PairwiseOp)
def emit_pairwise(op: PairwiseOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    is_nhwc = is_pairwise_nhwc(op, context, inputs)
    a, b = (_read(op, context, inputs, operand, is_nhwc=is_nhwc) for operand in (op.a, op.b))
    shape = op.y.tensor.shape
    sum_constants, relabelling = None, 0
    if op.kind in ("add", "sub"):
        tensors = op.a.tensor, op.b.tensor, op.y.tensor
        sum_constants, relabelling = float_sum_of(op.rounding, *tensors, subtract=op.kind == "sub")
    spec = PairwiseSpec(
        kind=op.kind,
        a_shape=shape_of(a),
        b_shape=shape_of(b),
        a_scale=float(op.a.tensor.params.scale),
        a_zero_point=op.a.tensor.zero_point,
        b_scale=float(op.b.tensor.params.scale),
        b_zero_point=op.b.tensor.zero_point,
        out_scale=float(op.y.tensor.params.scale),
        output=output_spec(op.y),
        float_sum=sum_constants,
        relabelling=relabelling,
        stored_even=op.kind == "mul" and op.rounding == "half_even_stored",
        threads=context.threads,
    )
    kernel = kernels.pairwise(spec, isa=context.isa)
    shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
    context.put(output, context.call(output.name, kernel, [a, b], shape), is_nhwc=is_nhwc)


def is_pairwise_nhwc(op: PairwiseOp, context: KernelContext, inputs: dict[str, Var]) -> bool:
    """Whether to compute in the permuted layout: where an operand lies so, and every variable has four dimensions."""
    variables = [operand for operand in (op.a, op.b) if operand.values is None]
    if len(op.y.tensor.shape) != 4 or any(len(operand.tensor.shape) != 4 for operand in variables):
        return False
    return any(context.storage.is_kept_nhwc(inputs[operand.tensor.name]) for operand in variables)


def _read(op: PairwiseOp, context: KernelContext, inputs: dict[str, Var], operand: Operand, *, is_nhwc: bool) -> Expr:
    if operand.values is None:
        return context.storage.get(inputs[operand.tensor.name], is_nhwc=is_nhwc)
    values = as_bytes(operand)
    if is_nhwc:
        values = values.reshape((1,) * (4 - values.ndim) + values.shape).transpose(TO_NHWC)
    return relax.const(np.ascontiguousarray(values))
