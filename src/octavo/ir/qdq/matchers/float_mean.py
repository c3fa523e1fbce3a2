"""Rule of the float32 mean over neighbouring axes with channels behind them: the pixels of an image, the rows of a matrix."""

from __future__ import annotations

import math
from typing import Any

from tvm.relax import Var

from ...composites.base import CompositeOp
from ...composites.float_ops import FloatMeanOp
from ...graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ...graph.rules import Region, Rejection
from ..values import constant_value

_MIN_CHANNELS = 4
"""Fewer side by side are not worth a vector."""


def is_of_pixels(shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    """Return whether a mean is over the pixels of NCHW images."""
    return len(shape) == 4 and axes == (2, 3)


def match_float_mean(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim a mean, or an average pool of a whole NCHW image, of a float32 activation."""
    call: Any = view.definition(core)
    x, shape, result = call.args[0], static_shape(call.args[0]), static_shape(core)
    if not isinstance(x, Var) or shape is None or result is None or 0 in shape or dtype_of(x) != "float32":
        return Rejection(reason=f"{core.name} is no mean of a float32 activation of static shape")
    if constant_value(view, x) is not None:
        return Rejection(reason=f"{core.name} is a mean of a constant")
    if call_to(call, "mean") is not None:
        axes = tuple(sorted(int(axis) % len(shape) for axis in call.attrs.axis or ()))
    elif str(call.attrs.layout) == "NCHW" and str(call.attrs.out_layout) in ("", "NCHW") and result[2:] == (1, 1):
        axes = (2, 3)
    else:
        axes = ()
    are_neighbours = bool(axes) and axes == tuple(range(axes[0], axes[-1] + 1))
    channels = shape[1] if is_of_pixels(shape, axes) else math.prod(shape[axes[-1] + 1 :]) if axes else 0
    if not are_neighbours or channels < _MIN_CHANNELS:
        return Rejection(reason=f"{core.name} is over axes {axes} of {shape}, not over pixels before their channels")
    op = FloatMeanOp(op=op_name(call), x=x.name, shape=shape, axes=axes, output_shape=result)
    return Region(core=core, output=core, members=(core,), inputs=(x,), op=op)
