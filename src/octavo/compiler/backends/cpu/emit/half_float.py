"""Kernel calls of casts and concatenations of 16-bit floats, which no composite claims. Reads no QDQ graph."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from tvm import relax
from tvm.relax import Expr, Var

from .....ir.graph.dataflow import DataflowView, call_to, static_shape
from .. import kernels
from ..context import KernelContext, shape_of
from ..kernels import HalfCastSpec, HalfConcatSpec
from ..storage import TO_NHWC

STORED_AS = "uint16"
"""Dtype in which kernels hold 16-bit floats."""


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


def emit_cast(context: KernelContext, view: DataflowView, var: Var, value: Expr, half_names: Collection[str]) -> bool:
    """Write a cast to or from the 16-bit variables `half_names`, in the layout the tensor lies in; return whether it is one."""
    call = call_to(value, "astype")
    source = None if call is None else call.args[0]
    if not isinstance(source, Var) or not {var.name, source.name} & set(half_names):
        return False
    widens = source.name in half_names
    storage = context.storage
    is_nhwc = storage.is_kept_nhwc(source)
    x = storage.get(source, is_nhwc=is_nhwc)
    dtype = str((source if widens else var).ty.dtype)
    assert dtype in ("bfloat16", "float16"), "a half is 16 bits wide"
    size = math.prod(shape_of(x))
    spec = HalfCastSpec(size=size, dtype=dtype, widens=widens, threads=context.threads)
    kernel = kernels.half_cast(spec, isa=context.isa)
    result = context.call(var.name, kernel, [x], shape_of(x), "float32" if widens else STORED_AS)
    context.put(var, result, is_nhwc=is_nhwc)
    return True
