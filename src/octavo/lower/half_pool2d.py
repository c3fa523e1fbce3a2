"""Pooling and concatenation of tensors kept in 16 bits (see precision.py), without a detour through float32 tensors."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from tvm import relax
from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import HalfConcatSpec, HalfPool2dSpec
from ..numerics.floats.half import HalfDtype
from .context import KernelContext, shape_of
from .conv2d import pair
from .forms import FloatOp, Layout
from .storage import TO_NHWC

STORED_AS = "uint16"
"""Dtype in which kernels hold 16-bit floats."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HalfPoolForm(FloatOp):
    """Max or average pooling from 16 bits to 16 bits."""

    x: str
    dtype: HalfDtype
    kind: Literal["max", "avg"]
    layout: Layout
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    count_include_pad: bool
    output_shape: tuple[int, ...]

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        is_nhwc = self.layout == "NCHW"
        x = context.storage.get(inputs[self.x], is_nhwc=is_nhwc)
        batch, height, width, channels = shape_of(x)
        rows, columns = self.output_shape[2:] if is_nhwc else self.output_shape[1:3]
        spec = HalfPool2dSpec(
            dtype=self.dtype,
            kind=self.kind,
            batch=batch,
            in_height=height,
            in_width=width,
            out_height=rows,
            out_width=columns,
            channels=channels,
            kernel=self.kernel,
            strides=self.strides,
            padding=self.padding,
            dilation=self.dilation,
            count_include_pad=self.count_include_pad,
            threads=context.threads,
        )
        kernel = kernels.half_pool2d(spec, isa=context.isa)
        result = context.call(output.name, kernel, [x], (batch, rows, columns, channels), STORED_AS)
        context.put(output, result, is_nhwc=is_nhwc)


def match_half_pool2d(view: DataflowView, core: Var) -> Region | Rejection:
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
    form = HalfPoolForm(
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
    return Region(core=core, output=user, members=(x, core, user), inputs=(source,), attrs={}, form=form)


def emit_concat(context: KernelContext, var: Var, value: Expr, halves: Collection[str]) -> bool:
    """Write the concatenation of 16-bit variables as a kernel, in the layout they have; return whether it is one."""
    call: Any = call_to(value, "concat")
    if call is None or var.name not in halves or not isinstance(call.args[0], relax.Tuple) or call.attrs.axis is None:
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
