"""Kernel calls of composites: concat. Reads no QDQ graph."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr, Var

from .....ir.composites.base import QuantizedOutput, QuantizedTensor, ratio
from .....ir.composites.movement import ConcatOp
from .....ir.composites.outputs import output_spec
from .....numerics import lookup_table
from .....numerics.quantized.rescale import fixed_point_table
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import ConcatSpec
from ..storage import TO_NHWC
from .lookup import looked_up


@emits(ConcatOp)
def emit_concat(op: ConcatOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    args, is_nhwc = _operands(op, context, inputs)
    shape, axis, is_wide = op.y.tensor.shape, op.axis, op.y.kernel_dtype == "int16"
    in_integers = op.y.fixed_point is not None
    if is_wide or in_integers:
        tensors = list(enumerate(zip(op.inputs, args, strict=True)))
        args = [_requantized(context, f"{output.name}_part{i}", arg, tensor, op.y) for i, (tensor, arg) in tensors]
    if is_nhwc:
        shape, axis = tuple(shape[a] for a in TO_NHWC), TO_NHWC.index(axis)
    spec = ConcatSpec(
        outer=int(np.prod(shape[:axis], dtype=np.int64)),
        inners=tuple(int(np.prod(shape_of(arg)[axis:], dtype=np.int64)) for arg in args),
        multipliers=tuple(1.0 if is_wide or in_integers else ratio(each.params, op.y.tensor.params) for each in op.inputs),
        zero_points=tuple((op.y.tensor if in_integers else each).zero_point for each in op.inputs),
        output=output_spec(op.y),
        dtype=op.y.kernel_dtype,
        threads=context.threads,
    )
    kernel = kernels.concat(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, args, shape, op.y.kernel_dtype), is_nhwc=is_nhwc)


def _requantized(context: KernelContext, name: str, value: Expr, x: QuantizedTensor, y: QuantizedOutput) -> Expr:
    """Return an operand with the parameters of the result: through a table with an entry for every integer."""
    if x.params == y.tensor.params:
        return value
    return looked_up(context, name, value, y, operand_table(x, y))


def operand_table(x: QuantizedTensor, y: QuantizedOutput) -> npt.NDArray[np.integer]:
    """Return each integer of an operand as one of the result's parameters, rounded as its quantize says."""
    params = y.tensor.params
    if y.fixed_point is not None:
        return fixed_point_table(x.params, params, y.fixed_point, qmin=y.qmin, qmax=y.qmax)
    return lookup_table(lambda real: real, x.params, params, qmin=y.qmin, qmax=y.qmax)


def _operands(op: ConcatOp, context: KernelContext, inputs: dict[str, Var]) -> tuple[list[Expr], bool]:
    """Return what is concatenated as kernels read it, and whether that is NHWC."""
    variables = {i: inputs[tensor.name] for i, tensor in enumerate(op.inputs) if i not in op.constants}
    is_nhwc = len(op.y.tensor.shape) == 4 and any(context.storage.is_kept_nhwc(var) for var in variables.values())
    args = [
        context.storage.get(variables[i], is_nhwc=is_nhwc) if i in variables else _constant(op, i, is_nhwc=is_nhwc)
        for i in range(len(op.inputs))
    ]
    return args, is_nhwc


def _constant(op: ConcatOp, position: int, *, is_nhwc: bool) -> Expr:
    values = op.inputs[position].kernel_integers(op.constants[position])
    return relax.const(np.ascontiguousarray(values.transpose(TO_NHWC) if is_nhwc else values))
