"""Pooling and concatenation of tensors kept in 16 bits (see downcast.py), without a detour through float32 tensors."""

from __future__ import annotations

from typing import Any

from tvm.relax import Var

from ....numerics.floats.half import HalfDtype
from ...composites.base import CompositeOp
from ...composites.float_ops import HalfPool2dOp
from ...graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ...graph.rules import Region, Rejection
from .conv2d import pair


def match_half_pool2d(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim astype(pool(astype(x, "float32")), x's own dtype) of a 16-bit x."""
    call: Any = view.definition(core)
    x, user, shape = call.args[0], view.only_user(core), static_shape(core)
    widening: Any = call_to(view.definition(x), "astype")
    narrowing = None if user is None else call_to(view.definition(user), "astype")
    if widening is None or narrowing is None or user is None or shape is None or not isinstance(x, Var):
        return Rejection(reason=f"{core.name} is not kept in 16 bits")
    source = widening.args[0]
    dtype: HalfDtype = "bfloat16" if dtype_of(source) == "bfloat16" else "float16"
    if {dtype_of(source), dtype_of(user)} != {dtype} or not isinstance(source, Var):
        return Rejection(reason=f"{core.name} is not kept in 16 bits")
    attrs = call.attrs
    layout, kind = str(attrs.layout), "max" if op_name(call) == "nn.max_pool2d" else "avg"
    padding = tuple(int(width) for width in attrs.padding)
    # Where windows may end behind the padding, those that count it count no more than that.
    counts_beyond = kind == "avg" and bool(attrs.count_include_pad) and bool(attrs.ceil_mode)
    if layout not in ("NCHW", "NHWC") or str(attrs.out_layout) not in ("", layout) or len(padding) != 4 or counts_beyond:
        return Rejection(reason=f"layout {layout}, or windows that end behind the padding, are not those of a kernel")
    op = HalfPool2dOp(
        op=op_name(call),
        x=source.name,
        dtype=dtype,
        kind="max" if kind == "max" else "avg",
        layout="NCHW" if layout == "NCHW" else "NHWC",
        kernel=pair(attrs.pool_size),
        strides=pair(attrs.strides),
        padding=(padding[0], padding[1]),
        dilation=pair(attrs.dilation),
        count_include_pad=bool(attrs.count_include_pad),
        output_shape=shape,
    )
    return Region(core=core, output=user, members=(x, core, user), inputs=(source,), op=op)
