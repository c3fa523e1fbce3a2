"""Kernel calls of composites: pairwise. Reads no QDQ graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import Expr, Var

from ....composites.elementwise import Operand, PairwiseOp, as_held, float_sum_of
from ....composites.outputs import output_spec
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import Kernel, PairwiseSpec
from ..kernels.int16_elementwise import int16_pairwise
from ..kernels.int16_float import int16_float_pairwise
from ..kernels.int16_spec import Int16FloatPairwiseSpec, Int16PairwiseSpec
from ..storage import TO_NHWC


@emits(PairwiseOp)
def emit_pairwise(op: PairwiseOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    is_nhwc = is_pairwise_nhwc(op, context, inputs)
    a, b = (_read(context, inputs, operand, is_nhwc=is_nhwc) for operand in (op.a, op.b))
    shape = op.y.tensor.shape
    shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
    kernel = (_int16_kernel if op.y.kernel_dtype == "int16" else _uint8_kernel)(op, context, shape_of(a), shape_of(b))
    context.put(output, context.call(output.name, kernel, [a, b], shape, op.y.kernel_dtype), is_nhwc=is_nhwc)


def _uint8_kernel(op: PairwiseOp, context: KernelContext, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> Kernel:
    sum_constants, relabelling = None, 0
    if op.kind in ("add", "sub"):
        tensors = op.a.tensor, op.b.tensor, op.y.tensor
        sum_constants, relabelling = float_sum_of(op.rounding, *tensors, subtract=op.kind == "sub")
    spec = PairwiseSpec(
        kind=op.kind,
        a_shape=a_shape,
        b_shape=b_shape,
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
    return kernels.pairwise(spec, isa=context.isa)


def _int16_kernel(op: PairwiseOp, context: KernelContext, a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> Kernel:
    facts: dict[str, Any] = {
        "kind": op.kind,
        "a_shape": a_shape,
        "b_shape": b_shape,
        "a_scale": float(op.a.tensor.params.scale),
        "b_scale": float(op.b.tensor.params.scale),
        "out_scale": float(op.y.tensor.params.scale),
        "output": output_spec(op.y),
        "threads": context.threads,
    }
    if op.rounding == "fixed_point":
        return int16_pairwise(Int16PairwiseSpec(**facts), isa=context.isa)
    facts |= {"a_zero_point": op.a.tensor.zero_point, "b_zero_point": op.b.tensor.zero_point}
    return int16_float_pairwise(Int16FloatPairwiseSpec(**facts), isa=context.isa)


def is_pairwise_nhwc(op: PairwiseOp, context: KernelContext, inputs: dict[str, Var]) -> bool:
    """Whether to compute in the permuted layout: where an operand lies so, and every variable has four dimensions."""
    variables = [operand for operand in (op.a, op.b) if operand.values is None]
    if len(op.y.tensor.shape) != 4 or any(len(operand.tensor.shape) != 4 for operand in variables):
        return False
    return any(context.storage.is_kept_nhwc(inputs[operand.tensor.name]) for operand in variables)


def _read(context: KernelContext, inputs: dict[str, Var], operand: Operand, *, is_nhwc: bool) -> Expr:
    if operand.values is None:
        return context.storage.get(inputs[operand.tensor.name], is_nhwc=is_nhwc)
    values = as_held(operand)
    if is_nhwc:
        values = values.reshape((1,) * (4 - values.ndim) + values.shape).transpose(TO_NHWC)
    return relax.const(np.ascontiguousarray(values))
