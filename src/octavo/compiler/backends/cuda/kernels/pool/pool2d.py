"""Pooling over rows and columns, and means of all pixels as reductions."""

from __future__ import annotations

import math

from ......ir.composites.reduction import Pool2dOp
from ...isa import Isa
from ...kernel import Argument, BoundKernel, Kernel, Number
from ..quantization.change import change_of, kept
from ..reductions.reduce import ReduceSpec
from .average import ROUNDINGS, average_parameters

_THREADS = 128


def image_mean(op: Pool2dOp, x_shape: tuple[int, ...]) -> ReduceSpec | None:
    """Return the mean of all pixels of each NHWC image as a reduction; None where a pooling is another op."""
    batch, height, width, channels = x_shape
    is_image = op.kernel == (height, width) and (op.out_height, op.out_width) == (1, 1) and not any(op.padding)
    if op.kind != "avg" or not is_image or op.dilation != (1, 1) or op.rounding not in ROUNDINGS:
        return None
    count = height * width
    return ReduceSpec(
        kind="sum",
        outer=batch,
        extent=count,
        inner=channels,
        change=kept(op.x.params.dtype),
        to=op.y.tensor.params.dtype,
        parameters=average_parameters(op.x, op.y, op.rounding, count),
    )


def pool2d(op: Pool2dOp, x_shape: tuple[int, ...], isa: Isa) -> BoundKernel:
    """Return the kernel of a pooling of an NHWC tensor of this shape in memory."""
    batch, height, width, channels = x_shape
    per_thread = 4 if channels % 4 == 0 else 1
    items = batch * op.out_height * op.out_width * channels // per_thread
    is_max, is_float = op.kind == "max", op.rounding == "float32"
    how = change_of(op.x, op.y)
    parameters: dict[str, Number] = {
        "items": items,
        "threads": _THREADS,
        "channels_of_thread": per_thread,
        "in_height": height,
        "in_width": width,
        "channels": channels,
        "out_height": op.out_height,
        "out_width": op.out_width,
        "kernel_height": op.kernel[0],
        "kernel_width": op.kernel[1],
        "stride_height": op.strides[0],
        "stride_width": op.strides[1],
        "pad_top": op.padding[0],
        "pad_left": op.padding[1],
        "dilation_height": op.dilation[0],
        "dilation_width": op.dilation[1],
        "is_max": is_max,
        "is_float": is_float,
        "counts_padding": op.count_include_pad,
        "x_scale": float(op.x.params.scale),
        "y_scale": float(op.y.tensor.params.scale),
        **how.parameters,
        **average_parameters(op.x, op.y, "half_even" if is_max or is_float else op.rounding, _count(op, x_shape)),
    }
    kernel = Kernel(
        name="max_pool2d" if is_max else "avg_pool2d",
        header="pool2d.cuh",
        function="pool2d",
        parameters=parameters,
        types=how.types,
        arguments=(
            Argument(name="x", dtype=how.dtype),
            Argument(name="table", dtype=how.to),
            Argument(name="y", dtype=how.to, writes=True),
        ),
        grid=(-(-items // _THREADS), 1, 1),
        block=(_THREADS, 1, 1),
        isa=isa.name,
    )
    return kernel, (how.table,)


def _count(op: Pool2dOp, x_shape: tuple[int, ...]) -> int:
    """Return by what every window's sum is divided; 0 where windows that reach beyond the image have another number."""
    axes = zip((op.out_height, op.out_width), op.kernel, op.strides, op.dilation, op.padding[:2], x_shape[1:3], strict=True)
    reaches = any(pad > 0 or (out - 1) * stride + (taps - 1) * gap >= size for out, taps, stride, gap, pad, size in axes)
    return math.prod(op.kernel) if op.count_include_pad or not reaches else 0
