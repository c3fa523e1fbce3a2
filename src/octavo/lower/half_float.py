"""What of a downcast module runs in which kernels: casts, and the float ops with constant weights, which are rounded too.

See precision.py for the form of such a module. 16 bits are held as uint16. Where the machine multiplies bfloat16, a composite
goes from 16 bits to 16 bits; elsewhere kernels of float32 stand between casts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from tvm.ir import Call
from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, dtype_of
from ..graph.rules import Region, Rejection, Rule
from ..kernels import Bfloat16Conv2dSpec, FloatConv2dSpec, HalfCastSpec
from ..kernels.bfloat16_spec import StoredDtype
from ..numerics.floats.half import HALF_DTYPES, MAX_FINITE, HalfDtype, round_half
from .context import KernelContext, shape_of
from .float_conv2d import FloatConvForm, FloatForm, FloatMatmulForm, match_float_conv2d, match_float_matmul
from .forms import FloatOp
from .half_pool2d import match_half_pool2d
from .precision import Precision

STORED_AS = "uint16"
"""Dtype in which kernels hold 16-bit floats."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bfloat16Form(FloatOp):
    """A convolution or matmul as `float_form` says it, from 16 bits `x`; `addend` and the result are 16 bits wide or float32."""

    float_form: FloatConvForm | FloatMatmulForm
    x: str
    addend: str | None
    addend_dtype: StoredDtype
    output_dtype: StoredDtype

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return self.float_form.macs

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        form = self.float_form
        is_nhwc = isinstance(form, FloatConvForm) and form.layout == "NCHW"
        names = [name for name in (self.x, self.addend) if name is not None]
        arguments = [context.storage.get(inputs[name], is_nhwc=is_nhwc) for name in names]
        plain = _plain_spec(form, shape_of(arguments[0]), context.threads)
        values: dict[str, Any] = {field.name: getattr(plain, field.name) for field in fields(plain)}
        spec = Bfloat16Conv2dSpec(**values, addend=self.addend_dtype, output=self.output_dtype)
        if isinstance(form, FloatConvForm):
            kernel = kernels.bfloat16_conv2d(spec, weight=form.weight, bias=form.bias, schedules=context.schedules)
            shape = (spec.batch, spec.out_height, spec.out_width, spec.out_channels)
        else:
            kernel = kernels.bfloat16_matmul(spec, weight=form.weight, bias=form.bias, schedules=context.schedules)
            shape = form.output_shape
        context.put(output, context.call(output.name, kernel, arguments, shape, self.output_dtype), is_nhwc=is_nhwc)


def _plain_spec(form: FloatConvForm | FloatMatmulForm, shape: tuple[int, ...], threads: int) -> FloatConv2dSpec:
    """Return what is computed of an input of this shape, as the float32 kernels take it; a row of a matrix is a pixel."""
    if isinstance(form, FloatConvForm):
        return form.spec(shape, threads)
    return FloatConv2dSpec(
        batch=1,
        in_height=math.prod(shape[:-1]),
        in_width=1,
        in_channels=shape[-1],
        out_channels=form.weight.shape[1],
        kernel=(1, 1),
        adds=form.addend is not None,
        low=form.low,
        high=form.high,
        threads=threads,
    )


def half_rules(precision: Precision) -> tuple[Rule, ...]:
    """Return the rules of the ops with constant weights."""

    def bound(match: Callable[[DataflowView, Var], Region | Rejection]) -> Callable[[DataflowView, Var], Region | Rejection]:
        def matched(view: DataflowView, core: Var) -> Region | Rejection:
            found = match(view, core)
            if isinstance(found, Rejection):
                return found
            region = _in_bfloat16(view, found) if precision.has_products else None
            return region or _with_half_weights(found, precision.dtype)

        return matched

    return (
        Rule(composite="octavo.half_conv2d", ops=("nn.conv2d",), match=bound(partial(match_float_conv2d, takes_function=False))),
        Rule(composite="octavo.half_matmul", ops=("matmul",), match=bound(partial(match_float_matmul, takes_function=False))),
        Rule(composite="octavo.half_pool2d", ops=("nn.max_pool2d", "nn.avg_pool2d"), match=match_half_pool2d),
    )


def is_widening(view: DataflowView, var: Var) -> bool:
    """Return whether a value is a 16-bit one as float32: it costs nothing inside a composite."""
    call = call_to(view.definition(var), "astype")
    return call is not None and dtype_of(var) == "float32" and dtype_of(call.args[0]) in HALF_DTYPES


def _in_bfloat16(view: DataflowView, found: Region) -> Region | None:
    """Return a float region with the casts around it; None where its input is not in 16 bits, or no kernel is written for it."""
    form: FloatForm = found.form
    by_name = {var.name: var for var in found.inputs}
    x = by_name[form.x]
    if not isinstance(form, FloatConvForm | FloatMatmulForm) or not is_widening(view, x):
        return None
    addend = None if form.addend is None else by_name[form.addend]
    widened = [var for var in (x, addend) if var is not None and is_widening(view, var)]
    halves = {var: _source(view, var) for var in widened}
    user = view.only_user(found.output)
    narrows = user is not None and call_to(view.definition(user), "astype") is not None and dtype_of(user) == "bfloat16"
    read = tuple(dict.fromkeys(halves.get(var, var) for var in (x, addend) if var is not None))
    return replace(
        found,
        output=user if narrows and user is not None else found.output,
        members=(*widened, *found.members, *((user,) if narrows and user is not None else ())),
        inputs=read,
        form=Bfloat16Form(
            op=form.op,
            float_form=form,
            x=halves[x].name,
            addend=None if addend is None else halves.get(addend, addend).name,
            addend_dtype="uint16" if addend in halves else "float32",
            output_dtype="uint16" if narrows else "float32",
        ),
    )


def _source(view: DataflowView, widened: Var) -> Var:
    value = view.definition(widened)
    assert isinstance(value, Call)
    assert isinstance(value.args[0], Var), "a constant is no tensor to keep in 16 bits"
    return value.args[0]


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
    if not largest > MAX_FINITE[dtype]:
        return ""
    return f"its weights reach {largest:g}, beyond {dtype}'s largest number {MAX_FINITE[dtype]:g}: they stay float32"


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
