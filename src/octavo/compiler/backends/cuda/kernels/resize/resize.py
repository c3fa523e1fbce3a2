"""Bilinear resizing."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ......ir.composites.reduction import FloatResizeOp, ResizeOp
from ...isa import Isa
from ...kernel import Argument, BoundKernel, Kernel, Number
from ..quantization.change import Change, change_of

_THREADS = 128


def resize(op: ResizeOp, x_shape: tuple[int, ...], isa: Isa) -> BoundKernel:
    """Return the kernel that resizes an NHWC tensor of this shape in memory in fixed point."""
    how = change_of(op.x, op.y)
    more: dict[str, Number] = {"fraction_bits": op.rows.bits, "half_even": op.rounding == "half_even", **how.parameters}
    taps = [np.array([axis.first, axis.second, axis.fractions], np.int32) for axis in (op.rows, op.columns)]
    read = (Argument(name="rows", dtype="int32"), Argument(name="columns", dtype="int32"), Argument(name="table", dtype=how.to))
    return _kernel("resize", op, x_shape, how, read, more, isa), (*taps, how.table)


def float_resize(op: FloatResizeOp, x_shape: tuple[int, ...], isa: Isa) -> BoundKernel:
    """Return the kernel that resizes an NHWC tensor of this shape in memory in float32."""
    params = op.y.tensor.params
    scales: dict[str, Number] = {"x_scale": float(op.x.params.scale), "y_scale": float(params.scale)}
    points = {"x_zero_point": int(op.x.params.zero_point), "zero_point": int(params.zero_point)}
    more: dict[str, Number] = {**scales, **points, "qmin": op.y.qmin, "qmax": op.y.qmax, "cuts_off": op.cuts_off}
    read = [Argument(name=name, dtype="int32") for name in ("rows", "columns")]
    read += [Argument(name=name, dtype="float32") for name in ("row_weights", "column_weights")]
    constants: list[npt.NDArray[np.generic]] = [np.array([axis.first, axis.second], np.int32) for axis in (op.rows, op.columns)]
    constants += [np.array([axis.first_weights, axis.second_weights], np.float32) for axis in (op.rows, op.columns)]
    return _kernel("float_resize", op, x_shape, change_of(op.x, op.y), tuple(read), more, isa), tuple(constants)


def _kernel(
    name: str,
    op: ResizeOp | FloatResizeOp,
    x_shape: tuple[int, ...],
    how: Change,
    read: tuple[Argument, ...],
    more: dict[str, Number],
    isa: Isa,
) -> Kernel:
    batch, height, width, channels = x_shape
    out_height, out_width = len(op.rows.first), len(op.columns.first)
    per_thread = 4 if channels % 4 == 0 else 1
    items = batch * out_height * out_width * channels // per_thread
    sizes: dict[str, Number] = {"in_height": height, "in_width": width, "channels": channels}
    sizes |= {"out_height": out_height, "out_width": out_width, "channels_of_thread": per_thread}
    return Kernel(
        name=name,
        header="resize.cuh",
        function=name,
        parameters={"items": items, "threads": _THREADS, **sizes, **more},
        types=how.types,
        arguments=(Argument(name="x", dtype=how.dtype), *read, Argument(name="y", dtype=how.to, writes=True)),
        grid=(-(-items // _THREADS), 1, 1),
        block=(_THREADS, 1, 1),
        isa=isa.name,
    )
