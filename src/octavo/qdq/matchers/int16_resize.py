"""Rule of bilinear resizing of int16 images; what it matches is what the 8-bit rule matches."""

from __future__ import annotations

from dataclasses import replace

from tvm.relax import Var

from ...composites.reduction import FloatResizeOp, Int16ResizeOp, ResizeOp
from ...graph.dataflow import DataflowView, call_to
from ...graph.rules import Region, Rejection
from ...numerics.quantized.resize import int16_linear_taps
from ...target import OpSupport
from ..rounding import is_fixed_int16
from .resize import match_resize


def match_int16_resize(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim what `match_resize` claims, in fixed point where the source asks for it; scale and zero point stay."""
    found = match_resize(view, core, support)
    if isinstance(found, Rejection):
        return found
    if not is_fixed_int16(view):
        return Rejection(reason="resizing of int16 is integer in TFLite files alone; ONNX Runtime computes it in float32")
    base: ResizeOp | FloatResizeOp = found.form
    x, y = base.x, base.y
    bounds = (y.tensor.params.qmin, y.tensor.params.qmax)
    if x.params != y.tensor.params or (y.qmin, y.qmax) != bounds:
        return Rejection(reason=f"it changes scale, zero point or bounds of {x.name}; 16-bit resizing keeps them")
    call = call_to(view.definition(core), "image.resize2d")
    assert call is not None, "the 8-bit rule saw it"
    mode, axes = str(call.attrs.coordinate_transformation_mode), (base.layout.index("H"), base.layout.index("W"))
    try:
        rows, columns = (int16_linear_taps(x.shape[axis], y.shape[axis], mode) for axis in axes)
    except ValueError as error:
        return Rejection(reason=str(error))
    form = Int16ResizeOp(base=base, rows=rows, columns=columns)
    return replace(found, attrs={**found.attrs, "quantize_info": form.quantize_info()}, form=form)
