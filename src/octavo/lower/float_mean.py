"""Rule of the float32 mean over neighbouring axes with channels behind them: the pixels of an image, the rows of a matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm.relax import Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import FloatMeanSpec
from .context import KernelContext
from .forms import FloatOp
from .values import constant_value

_LEAST_CHANNELS = 4
"""Fewer side by side are not worth a vector."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatMeanForm(FloatOp):
    """A mean over `axes` of the source's layout; over height and width of NCHW it reads and writes NHWC."""

    x: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    output_shape: tuple[int, ...]

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        is_nhwc = _is_of_pixels(self.shape, self.axes)
        x = context.storage.get(inputs[self.x], is_nhwc=is_nhwc)
        shape, axes, result = self.shape, self.axes, self.output_shape
        if is_nhwc:
            shape, axes = (shape[0], shape[2], shape[3], shape[1]), (1, 2)
            result = result if len(result) == 2 else (result[0], 1, 1, result[1])
        spec = FloatMeanSpec(
            outer=math.prod(shape[: axes[0]]),
            count=math.prod(shape[axis] for axis in axes),
            inner=math.prod(shape[axes[-1] + 1 :]),
            threads=context.threads,
        )
        value = context.call(output.name, kernels.mean_in_order(spec, isa=context.isa), [x], result, "float32")
        context.put(output, value, is_nhwc=is_nhwc and len(result) == 4)


def _is_of_pixels(shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    return len(shape) == 4 and axes == (2, 3)


def match_float_mean(view: DataflowView, core: Var) -> Region | Rejection:
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
    channels = shape[1] if _is_of_pixels(shape, axes) else math.prod(shape[axes[-1] + 1 :]) if axes else 0
    if not are_neighbours or channels < _LEAST_CHANNELS:
        return Rejection(reason=f"{core.name} is over axes {axes} of {shape}, not over pixels before their channels")
    form = FloatMeanForm(op=op_name(call), x=x.name, shape=shape, axes=axes, output_shape=result)
    return Region(core=core, output=core, members=(core,), inputs=(x,), attrs={}, form=form)
