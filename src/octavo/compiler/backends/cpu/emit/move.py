"""Kernel calls of composites: move. Reads no QDQ graph."""

from __future__ import annotations

import numpy as np
from tvm.relax import Expr, Var

from .....ir.composites.base import QuantizedOutput, ratio
from .....ir.composites.movement import MoveOp
from .....ir.composites.outputs import output_spec
from .....ir.qdq.matchers.move import changes
from .....numerics import QuantParams
from .....numerics.quantized.rescale import fixed_point_table
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import RequantizeSpec
from ..storage import TO_NHWC
from .lookup import looked_up


@emits(MoveOp)
def emit_move(op: MoveOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    var = inputs[op.x.name]
    keeps_shape = op.axes is None and op.x.shape == op.y.tensor.shape
    is_nhwc = context.storage.is_kept_nhwc(var) and (keeps_shape or op.axes == TO_NHWC or _is_flat_image(op))
    value = context.storage.get(var, is_nhwc=is_nhwc)
    if op.axes is not None and not is_nhwc:
        value = context.permute(f"{output.name}_moved", value, op.axes)
    elif shape_of(value) != op.y.tensor.shape and not (is_nhwc and keeps_shape):
        value = context.reshape(f"{output.name}_moved", value, op.y.tensor.shape)
    if changes(op.x, op.y):
        value = requantized(context, output.name, value, op.x.params, op.y)
    context.put(output, value, is_nhwc=is_nhwc and keeps_shape)


def _is_flat_image(op: MoveOp) -> bool:
    """Whether an NCHW image is reshaped in a way that NHWC memory serves as well: height and width are 1."""
    return op.axes is None and len(op.x.shape) == 4 and op.x.shape[2] == op.x.shape[3] == 1


def requantized(context: KernelContext, name: str, value: Expr, params: QuantParams, y: QuantizedOutput) -> Var:
    """Write a change of parameters: `value` holds integers of `params` as kernels read them."""
    if y.fixed_point is not None and ratio(params, y.tensor.params) != 1.0:
        table = fixed_point_table(params, y.tensor.params, y.fixed_point, qmin=y.qmin, qmax=y.qmax)
        return looked_up(context, name, value, y, table)
    relabelling = 128 if params.dtype == "int8" else 0
    spec = RequantizeSpec(
        size=int(np.prod(shape_of(value))),
        multiplier=ratio(params, y.tensor.params),
        input_zero_point=int(params.zero_point) + relabelling,
        output=output_spec(y),
        threads=context.threads,
    )
    return context.call(name, kernels.requantize(spec, isa=context.isa), [value], shape_of(value))
