"""Rule of bilinear resizing; nearest neighbours are `gather`'s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import FloatResizeSpec, ResizeSpec
from ..numerics import FloatTaps, LinearTaps, float_taps, linear_taps
from ..target import OpSupport
from .context import KernelContext, shape_of
from .forms import Form, Layout, OutputForm, TensorForm
from .move import changes, requantized
from .rounding import rounding_of
from .tail import check_activation, follow_to_quantize
from .values import dequantized


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TappedInput:
    """What a kernel of any form reads, and the facts that every spec has.

    Parameters
    ----------
    value
        The image as it is kept, channels last.
    is_nhwc
        Whether it lies otherwise in the source, so that its channels were moved.
    facts
        Arguments that the specs share.
    result_shape
        [batch, height, width, channels] of the result.
    """

    value: Expr
    is_nhwc: bool
    facts: dict[str, Any]
    result_shape: tuple[int, int, int, int]

    @classmethod
    def of(
        cls,
        context: KernelContext,
        form: ResizeForm | FloatResizeForm,
        inputs: dict[str, Var],
        rows: LinearTaps | FloatTaps,
        columns: LinearTaps | FloatTaps,
    ) -> TappedInput:
        """Read the input of a form."""
        is_nhwc = form.layout == "NCHW"
        value = context.storage.get(inputs[form.x.name], is_nhwc=is_nhwc)
        batch, height, width, channels = shape_of(value)
        facts: dict[str, Any] = {"batch": batch, "in_height": height, "in_width": width, "channels": channels}
        facts |= {"rows": rows, "columns": columns, "threads": context.threads}
        result_shape = (batch, len(rows.first), len(columns.first), channels)
        return cls(value=value, is_nhwc=is_nhwc, facts=facts, result_shape=result_shape)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ResizeForm(Form):
    """Bilinear resizing on x's own integers, then the output's parameters."""

    x: TensorForm
    y: OutputForm
    layout: Layout
    rows: LinearTaps
    columns: LinearTaps
    rounding: Literal["half_up", "half_even"]

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input": self.x.info(), "output": self.y.info()}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        image = TappedInput.of(context, self, inputs, self.rows, self.columns)
        spec = ResizeSpec(**image.facts, rounding=self.rounding)
        changed = changes(self.x, self.y)
        name = f"{output.name}_resized" if changed else output.name
        value = context.call(name, kernels.resize_bilinear(spec, isa=context.isa), [image.value], image.result_shape)
        if changed:
            value = requantized(context, output.name, value, self.x.params, self.y)
        context.put(output, value, is_nhwc=image.is_nhwc)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatResizeForm(Form):
    """Bilinear resizing of real values in float32, as the source's framework computes it."""

    x: TensorForm
    y: OutputForm
    layout: Layout
    rows: FloatTaps
    columns: FloatTaps

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and how it is computed."""
        return {"input": self.x.info(), "output": self.y.info(), "rounding": "float32"}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        image = TappedInput.of(context, self, inputs, self.rows, self.columns)
        spec = FloatResizeSpec(
            **image.facts,
            in_scale=float(self.x.params.scale),
            input_zero_point=self.x.zero_point,
            out_scale=float(self.y.tensor.params.scale),
            output=self.y.spec(),
        )
        value = context.call(output.name, kernels.float_resize_bilinear(spec, isa=context.isa), [image.value], image.result_shape)
        context.put(output, value, is_nhwc=image.is_nhwc)


def match_resize(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(resize2d(dequantize(x))) by method "linear"."""
    call = call_to(view.definition(core), "image.resize2d")
    assert call is not None
    attrs = call.attrs
    stated, method = str(attrs.layout), str(attrs.method)
    if method != "linear" or stated not in ("NCHW", "NHWC"):
        return Rejection(reason=f"it resizes by {method} in layout {stated}")
    layout: Layout = "NCHW" if stated == "NCHW" else "NHWC"
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
    source = TensorForm(name=x.source.name, shape=shape, params=x.params)
    try:
        form = _form(view, source, tail.form, layout, attrs, out)
    except ValueError as error:
        return Rejection(reason=str(error))
    return Region(
        core=core,
        output=tail.output,
        members=(*(() if x.var is None else (x.var,)), core, *tail.members),
        inputs=(x.source,),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )


def _form(
    view: DataflowView, x: TensorForm, y: OutputForm, layout: Layout, attrs: Any, out: tuple[int, ...]
) -> ResizeForm | FloatResizeForm:
    """Return the form that rounds as the source asks for; ValueError where its positions are unknown."""
    mode, axes = str(attrs.coordinate_transformation_mode), (layout.index("H"), layout.index("W"))
    rounding = rounding_of(view, "image.resize2d")
    if rounding == "float32":
        rows, columns = (float_taps(x.shape[axis], out[axis], mode) for axis in axes)
        return FloatResizeForm(x=x, y=y, layout=layout, rows=rows, columns=columns)
    rows, columns = (linear_taps(x.shape[axis], out[axis], mode) for axis in axes)
    return ResizeForm(
        x=x, y=y, layout=layout, rows=rows, columns=columns, rounding="half_up" if rounding == "half_up" else "half_even"
    )
