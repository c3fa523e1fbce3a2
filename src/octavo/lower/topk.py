"""Rule of the greatest or least elements along an axis: their values, or their places. No arithmetic: order needs no scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from tvm.relax import Expr, Var

from ..graph.dataflow import DataflowView, dtype_of, static_shape
from ..graph.rules import Region, Rejection
from ..kernels.topk import TopkSpec, topk
from ..target import OpSupport
from .context import KernelContext, shape_of
from .forms import Form, OutputForm, TensorForm
from .move import changes
from .tail import check_activation, follow_to_quantize
from .values import dequantized

Given = Literal["values", "indices"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TopkForm(Form):
    """The `count` greatest or least elements of x along `axis`, counted in the source's layout; `y` is None for places."""

    x: TensorForm
    y: OutputForm | None
    axis: int
    count: int
    largest: bool

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role; places are no quantized tensor."""
        return {"input": self.x.info(), **({} if self.y is None else self.y.roles())}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call; another axis than the last one is brought there, and back."""
        shape = self.x.shape
        rest = tuple(axis for axis in range(len(shape)) if axis != self.axis)
        order = (*rest, self.axis)
        is_last = self.axis == len(shape) - 1
        x: Expr = context.storage.get(inputs[self.x.name], is_nhwc=False)
        x = x if is_last else context.permute(f"{output.name}_rows", x, order)
        gives: Given = "indices" if self.y is None else "values"
        dtype: Any = dtype_of(output) if self.y is None else "int64"
        spec = TopkSpec(
            rows=math.prod(shape[axis] for axis in rest),
            extent=shape[self.axis],
            count=self.count,
            largest=self.largest,
            gives=gives,
            dtype=self.x.kernel_dtype,
            index_dtype=dtype,
            threads=context.threads,
        )
        rows = (*(shape[axis] for axis in rest), self.count)
        name = output.name if is_last else f"{output.name}_found"
        value: Expr = context.call(name, topk(spec, isa=context.isa), [x], rows, spec.out_dtype)
        if not is_last:
            back = tuple(order.index(axis) for axis in range(len(shape)))
            value = context.permute(output.name, value, back)
        assert shape_of(value) == (static_shape(output) or ())
        context.put(output, value, is_nhwc=False)


def match_topk(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(topk(dequantize(x))) of values, or topk(dequantize(x)) of places."""
    call: Any = view.definition(core)
    gives = str(call.attrs.ret_type)
    x = dequantized(view, call.args[0])
    shape = None if x is None else static_shape(x.source)
    if x is None or not isinstance(x.source, Var) or shape is None:
        name = getattr(call.args[0], "name", "constant")
        return Rejection(reason=f"input {name} is float; quantize and dequantize it (constant scale) before this op")
    if gives not in ("values", "indices"):
        return Rejection(reason="it gives values and places at once; ask for each by an op of its own")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    axis, count = int(call.attrs.axis) % len(shape), int(call.attrs.k)
    if not 1 <= count <= shape[axis] or 0 in shape or (axis != len(shape) - 1 and dtype_of(core) == "int64"):
        return Rejection(reason=f"it looks for {count} of {shape} along axis {axis}, as {dtype_of(core)}")
    y: OutputForm | None = None
    output, behind = core, ()
    if gives == "values":
        tail = follow_to_quantize(view, core, support)
        if isinstance(tail, Rejection):
            return tail
        y, output, behind = tail.form, tail.output, tail.members
    source = TensorForm(name=x.source.name, shape=shape, params=x.params)
    if y is not None and changes(source, y):
        return Rejection(reason=f"it chooses values of {source.name} and changes their scale, zero point or bounds at once")
    form = TopkForm(x=source, y=y, axis=axis, count=count, largest=bool(call.attrs.largest))
    members = (*([x.var] if x.var is not None else []), core, *behind)
    attrs = {"quantize_info": form.quantize_info()}
    return Region(core=core, output=output, members=members, inputs=(x.source,), attrs=attrs, form=form)
