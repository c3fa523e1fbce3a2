"""Kernel calls of composites: softmax. Reads no QDQ graph."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from tvm.relax import Expr, Var

from .....ir.composites.normalization import SoftmaxOp
from .....ir.composites.outputs import output_spec
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import Kernel, SoftmaxSpec


@emits(SoftmaxOp)
def emit_softmax(op: SoftmaxOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    columns = op.x.shape[op.axis]
    is_fixed = op.rounding == "fixed_point"
    spec = SoftmaxSpec(
        rows=math.prod(op.x.shape) // columns,
        columns=columns,
        scale=float(op.x.params.scale) if is_fixed else float(np.float32(op.x.params.scale) * np.float32(op.beta)),
        beta=op.beta if is_fixed else 1.0,
        out_scale=_out_scale(op),
        output=output_spec(op.y),
        dtype=op.y.kernel_dtype,
        rounding="fixed_point" if is_fixed else "half_even",
        threads=context.threads,
    )
    kernel = (kernels.log_softmax if op.is_log else kernels.softmax)(spec, isa=context.isa)
    write_rows(context, inputs[op.x.name], output, op.axis, kernel, op.y.kernel_dtype)


def _out_scale(op: SoftmaxOp) -> float:
    """Return the real value of a step, or with "integer_inverse_scale" the next that goes into 1 a whole number of times."""
    scale = np.float32(op.y.tensor.params.scale)
    steps = np.floor(np.float32(1) / scale) if op.rounding == "integer_inverse_scale" else np.float32(0)
    return float(np.float32(1) / steps) if steps >= 1 else float(scale)


def write_rows(
    context: KernelContext,
    x: Var,
    output: Var,
    axis: int,
    kernel: Kernel,
    dtype: str = "uint8",
    *,
    beside: Sequence[Var] = (),
) -> None:
    """Write the call of a kernel on rows along `axis` of `x`, which is moved to the end for it where it lies elsewhere.

    So is that of the tensors of the same shape that it reads `beside`.
    """
    shape, tensors = shape_of(x), (x, *beside)
    if _is_last(shape, axis) or (len(shape) == 4 and axis == 1):
        is_nhwc = not _is_last(shape, axis)
        values = [context.storage.get(tensor, is_nhwc=is_nhwc) for tensor in tensors]
        context.put(output, context.call(output.name, kernel, values, shape_of(values[0]), dtype), is_nhwc=is_nhwc)
        return
    order = (*(other for other in range(len(shape)) if other != axis), axis)
    rows: list[Expr] = [
        context.permute(f"{output.name}_in_rows{number or ''}", context.storage.get(tensor, is_nhwc=False), order)
        for number, tensor in enumerate(tensors)
    ]
    result = context.call(f"{output.name}_by_row", kernel, rows, shape_of(rows[0]), dtype)
    back = tuple(order.index(other) for other in range(len(shape)))
    context.put(output, context.permute(output.name, result, back), is_nhwc=False)
    context.does_the_work(kernel)


def _is_last(shape: tuple[int, ...], axis: int) -> bool:
    return math.prod(shape[axis + 1 :]) == 1
