"""Rule of bilinear resizing; nearest neighbours are `gather`'s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.relax import Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import ResizeSpec
from ..numerics import LinearTaps, linear_taps
from ..target import OpSupport
from .context import KernelContext, shape_of
from .forms import Form, Layout, OutputForm, TensorForm
from .move import changes, requantized
from .rounding import rounding_of
from .tail import check_activation, follow_to_quantize
from .values import dequantized


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ResizeForm(Form):
    """Bilinear resizing on x's own integers, then the output's parameters."""

    x: TensorForm
    y: OutputForm
    layout: Layout
    rows: LinearTaps
    columns: LinearTaps
    is_half_up: bool

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input": self.x.info(), "output": self.y.info()}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        is_nhwc = self.layout == "NCHW"
        value = context.storage.get(inputs[self.x.name], is_nhwc=is_nhwc)
        batch, height, width, channels = shape_of(value)
        spec = ResizeSpec(
            batch=batch,
            in_height=height,
            in_width=width,
            channels=channels,
            rows=self.rows,
            columns=self.columns,
            rounding="half_up" if self.is_half_up else "half_even",
            threads=context.threads,
        )
        changed = changes(self.x, self.y)
        shape = (batch, len(self.rows.first), len(self.columns.first), channels)
        name = f"{output.name}_resized" if changed else output.name
        value = context.call(name, kernels.resize_bilinear(spec, isa=context.isa), [value], shape)
        if changed:
            value = requantized(context, output.name, value, self.x.params, self.y)
        context.put(output, value, is_nhwc=is_nhwc)


def match_resize(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(resize2d(dequantize(x))) by method "linear"."""
    call = call_to(view.definition(core), "image.resize2d")
    assert call is not None
    attrs = call.attrs
    layout, method = str(attrs.layout), str(attrs.method)
    if method != "linear" or layout not in ("NCHW", "NHWC"):
        return Rejection(reason=f"it resizes by {method} in layout {layout}")
    x = dequantized(view, call.args[0])
    shape, out = (None if x is None else static_shape(x.source)), static_shape(core)
    if x is None or not isinstance(x.source, Var) or shape is None or out is None:
        return Rejection(reason=f"input {getattr(call.args[0], 'name', 'constant')} is float, or its shape is not static")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    mode = str(attrs.coordinate_transformation_mode)
    try:
        rows, columns = (linear_taps(shape[axis], out[axis], mode) for axis in (layout.index("H"), layout.index("W")))
    except ValueError as error:
        return Rejection(reason=str(error))
    form = ResizeForm(
        x=TensorForm(name=x.source.name, shape=shape, params=x.params),
        y=tail.form,
        layout="NCHW" if layout == "NCHW" else "NHWC",
        rows=rows,
        columns=columns,
        is_half_up=rounding_of(view, "image.resize2d") == "half_up",
    )
    return Region(
        core=core,
        output=tail.output,
        members=(*(() if x.var is None else (x.var,)), core, *tail.members),
        inputs=(x.source,),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )
