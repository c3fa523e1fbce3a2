"""Rule of bilinear resizing; nearest neighbours are `gather`'s."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.relax import Var

from ....numerics import FloatTaps, PerTensor, QuantParams, float_taps, linear_taps
from ....numerics.quantized.resize import int16_linear_taps
from ....runtime.size import is_open
from ....target import OpSupport
from ....target.vocabulary import FLOAT32, HALF_UP
from ...composites.base import CompositeOp, Layout, QuantizedOutput, QuantizedTensor
from ...composites.reduction import FloatResizeOp, OpenTaps, ResizeOp
from ...graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ...graph.rules import Region, Rejection
from ..rounding import is_fixed_point, result_rounding
from ..tail import check_activation, follow_to_quantize, of_width
from ..values import dequantized


def match_resize(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(resize2d(dequantize(x))) by method "linear", and that of x's bare integers, which ONNX files have."""
    call = call_to(view.definition(core), "image.resize2d")
    assert call is not None
    attrs = call.attrs
    given_layout, method = str(attrs.layout), str(attrs.method)
    if method != "linear" or given_layout not in ("NCHW", "NHWC"):
        return Rejection(reason=f"it resizes by {method} in layout {given_layout}")
    layout: Layout = "NCHW" if given_layout == "NCHW" else "NHWC"
    if dtype_of(core) in _BYTES:
        return _of_bytes(core, call, layout, support)
    x = dequantized(view, call.args[0])
    shape, out = (None if x is None else static_shape(x.source)), static_shape(core)
    if x is None or not isinstance(x.source, Var) or shape is None or out is None:
        return Rejection(reason=f"input {getattr(call.args[0], 'name', 'constant')} is float, or its shape is not static")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    tail = follow_to_quantize(view, core, of_width(support, x.params))
    if isinstance(tail, Rejection):
        return tail
    source = QuantizedTensor(name=x.source.name, shape=shape, params=x.params)
    try:
        op = _resize_op(source, tail.result, layout, attrs, out, result_rounding(view, tail.members))
    except ValueError as error:
        return Rejection(reason=str(error))
    if isinstance(op, Rejection):
        return op
    return Region(
        core=core,
        output=tail.output,
        members=(*(() if x.var is None else (x.var,)), core, *tail.members),
        inputs=(x.source,),
        op=op,
    )


_BYTES = ("uint8", "int8")


def _of_bytes(core: Var, call: Any, layout: Layout, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim resize2d(x) of integers that no dequantize reads: numbers of scale 1, whose means ONNX Runtime cuts off."""
    x, out = call.args[0], static_shape(core)
    shape = static_shape(x)
    if not isinstance(x, Var) or shape is None or out is None:
        return Rejection(reason=f"input {getattr(x, 'name', 'constant')} is constant, or its shape is not static")
    params = QuantParams(
        dtype=dtype_of(core), scale=np.array(1, np.float32), zero_point=np.array(0, np.int32), granularity=PerTensor()
    )
    problem = check_activation(x.name, params, support)
    if problem is not None:
        return problem
    if FLOAT32 not in support.roundings:
        return Rejection(reason="ONNX Runtime resizes integers in float32; the target does not")
    mode, axes = str(call.attrs.coordinate_transformation_mode), (layout.index("H"), layout.index("W"))
    if mode not in _MODES:
        return Rejection(reason=f"coordinate transformation {mode!r} is none of those known here")
    rows, columns = (_float_taps(shape[axis], out[axis], mode) for axis in axes)
    source, result = (QuantizedTensor(name=var.name, shape=size, params=params) for var, size in ((x, shape), (core, out)))
    y = QuantizedOutput(tensor=result, qmin=params.qmin, qmax=params.qmax)
    op = FloatResizeOp(x=source, y=y, layout=layout, rows=rows, columns=columns, cuts_off=True)
    return Region(core=core, output=core, members=(core,), inputs=(x,), op=op)


def _float_taps(extent: int, out_extent: int, mode: str) -> FloatTaps | OpenTaps:
    if is_open(extent) or is_open(out_extent):
        return OpenTaps(extent=extent, out_extent=out_extent, mode=mode)
    return float_taps(extent, out_extent, mode)


def _resize_op(
    x: QuantizedTensor, y: QuantizedOutput, layout: Layout, attrs: Any, out: tuple[int, ...], rounding: str
) -> ResizeOp | FloatResizeOp | Rejection:
    """Return the composite op that rounds as the source asks for; ValueError where its positions are unknown."""
    mode, axes = str(attrs.coordinate_transformation_mode), (layout.index("H"), layout.index("W"))
    sizes = [(x.shape[axis], out[axis]) for axis in axes]
    if x.kernel_dtype != "int16" and any(is_open(size) for pair in sizes for size in pair):
        return _open_resize_op(x, y, layout, [OpenTaps(extent=a, out_extent=b, mode=mode) for a, b in sizes], rounding)
    if x.kernel_dtype == "int16":
        if not is_fixed_point(rounding):
            return Rejection(reason="resizing of int16 is integer in TFLite files alone; ONNX Runtime computes it in float32")
        if x.params != y.tensor.params or (y.qmin, y.qmax) != (x.params.qmin, x.params.qmax):
            return Rejection(reason=f"it changes scale, zero point or bounds of {x.name}; 16-bit resizing keeps them")
        # Open sizes raise OpenSizeError: the taps are constants.
        rows, columns = (int16_linear_taps(int(before), int(after), mode) for before, after in sizes)
        return ResizeOp(x=x, y=y, layout=layout, rows=rows, columns=columns, rounding="half_away")
    if rounding == FLOAT32:
        rows, columns = (float_taps(*size, mode) for size in sizes)
        return FloatResizeOp(x=x, y=y, layout=layout, rows=rows, columns=columns)
    rows, columns = (linear_taps(*size, mode) for size in sizes)
    return ResizeOp(
        x=x, y=y, layout=layout, rows=rows, columns=columns, rounding="half_up" if rounding == HALF_UP else "half_even"
    )


_MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


def _open_resize_op(
    x: QuantizedTensor, y: QuantizedOutput, layout: Layout, taps: list[OpenTaps], rounding: str
) -> ResizeOp | FloatResizeOp | Rejection:
    rows, columns = taps
    if rows.mode not in _MODES:
        return Rejection(reason=f"coordinate transformation {rows.mode!r} is none of those known here")
    if rounding == FLOAT32:
        return FloatResizeOp(x=x, y=y, layout=layout, rows=rows, columns=columns)
    return ResizeOp(
        x=x, y=y, layout=layout, rows=rows, columns=columns, rounding="half_up" if rounding == HALF_UP else "half_even"
    )
