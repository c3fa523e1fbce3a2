"""Kernel calls of composites: half_pool2d. Reads no QDQ graph."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from tvm import relax
from tvm.relax import Expr, Var

from .....ir.composites.float_ops import HalfPool2dOp
from .....ir.graph.dataflow import call_to, static_shape
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import HalfConcatSpec, HalfPool2dSpec
from ..storage import TO_NHWC
from .half_float import STORED_AS


@emits(HalfPool2dOp)
def emit_half_pool2d(op: HalfPool2dOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    is_nhwc = op.layout == "NCHW"
    x = context.storage.get(inputs[op.x], is_nhwc=is_nhwc)
    batch, height, width, channels = shape_of(x)
    rows, columns = op.output_shape[2:] if is_nhwc else op.output_shape[1:3]
    spec = HalfPool2dSpec(
        dtype=op.dtype,
        kind=op.kind,
        batch=batch,
        in_height=height,
        in_width=width,
        out_height=rows,
        out_width=columns,
        channels=channels,
        kernel=op.kernel,
        strides=op.strides,
        padding=op.padding,
        dilation=op.dilation,
        count_include_pad=op.count_include_pad,
        threads=context.threads,
    )
    kernel = kernels.half_pool2d(spec, isa=context.isa)
    result = context.call(output.name, kernel, [x], (batch, rows, columns, channels), STORED_AS)
    context.put(output, result, is_nhwc=is_nhwc)


def emit_concat(context: KernelContext, var: Var, value: Expr, half_names: Collection[str]) -> bool:
    """Write the concatenation of 16-bit variables as a kernel, in the layout they have; return whether it is one."""
    call: Any = call_to(value, "concat")
    if call is None or var.name not in half_names or not isinstance(call.args[0], relax.Tuple) or call.attrs.axis is None:
        return False
    fields = list(call.args[0].fields)
    storage, rank = context.storage, len(static_shape(var) or ())
    is_nhwc = rank == 4 and all(storage.is_kept_nhwc(field) for field in fields)
    parts = [storage.get(field, is_nhwc=is_nhwc) for field in fields]
    axis = int(call.attrs.axis) % rank
    axis = TO_NHWC.index(axis) if is_nhwc else axis
    shapes = [shape_of(part) for part in parts]
    shape = (*shapes[0][:axis], sum(each[axis] for each in shapes), *shapes[0][axis + 1 :])
    spec = HalfConcatSpec(
        outer=math.prod(shape[:axis]), inners=tuple(math.prod(each[axis:]) for each in shapes), threads=context.threads
    )
    kernel = kernels.half_concat(spec, isa=context.isa)
    context.put(var, context.call(var.name, kernel, parts, shape, STORED_AS), is_nhwc=is_nhwc)
    return True
