"""What of a downcast module runs in which kernels: casts, and the float ops with constant weights, whose weights are rounded too.

See precision.py for the form of such a module. 16 bits are held as uint16.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to
from ..graph.rules import Region, Rejection, Rule
from ..kernels import HalfCastSpec
from ..numerics.half import LARGEST, HalfDtype, round_half
from .context import KernelContext, shape_of
from .float_conv2d import FloatForm, match_float_conv2d, match_float_matmul
from .precision import Precision

STORED_AS = "uint16"
"""Dtype in which kernels hold 16-bit floats."""


def half_rules(precision: Precision) -> tuple[Rule, ...]:
    """Return the rules of the ops with constant weights."""

    def conv2d(view: DataflowView, core: Var) -> Region | Rejection:
        return _with_half_weights(match_float_conv2d(view, core), precision.dtype)

    def matmul(view: DataflowView, core: Var) -> Region | Rejection:
        return _with_half_weights(match_float_matmul(view, core), precision.dtype)

    return (
        Rule(composite="octavo.float_conv2d", ops=("nn.conv2d",), match=conv2d),
        Rule(composite="octavo.float_matmul", ops=("matmul",), match=matmul),
    )


def _with_half_weights(found: Region | Rejection, dtype: HalfDtype) -> Region | Rejection:
    if isinstance(found, Rejection) or weight_obstacle(found.form, dtype):
        return found
    form: FloatForm = found.form
    return replace(found, form=replace(form, weight=round_half(form.weight, dtype)))


def weight_obstacle(form: object, dtype: HalfDtype) -> str:
    """Return why the weights of an op stay float32, "" where they don't, or where it has none."""
    if not isinstance(form, FloatForm):
        return ""
    largest = float(np.abs(form.weight).max(initial=0.0))
    if not largest > LARGEST[dtype]:
        return ""
    return f"its weights reach {largest:g}, beyond {dtype}'s largest number {LARGEST[dtype]:g}: they stay float32"


def emit_cast(context: KernelContext, view: DataflowView, var: Var, value: Expr, halves: Collection[str]) -> bool:
    """Write a cast to or from the 16-bit variables `halves`, whichever way the tensor lies; return whether it is one."""
    call = call_to(value, "astype")
    source = None if call is None else call.args[0]
    if not isinstance(source, Var) or not {var.name, source.name} & set(halves):
        return False
    widens = source.name in halves
    storage = context.storage
    is_nhwc = storage.is_kept_nhwc(source)
    x = storage.get(source, is_nhwc=is_nhwc)
    dtype = str((source if widens else var).ty.dtype)
    assert dtype in ("bfloat16", "float16"), "a half is 16 bits wide"
    size = int(np.prod(shape_of(x)))
    spec = HalfCastSpec(size=size, dtype=dtype, widens=widens, threads=context.threads)
    kernel = kernels.half_cast(spec, isa=context.isa)
    result = context.call(var.name, kernel, [x], shape_of(x), "float32" if widens else STORED_AS)
    context.put(var, result, is_nhwc=is_nhwc)
    return True
