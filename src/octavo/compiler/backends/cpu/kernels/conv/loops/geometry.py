"""Where the elements of each output pixel's window lie in NHWC, and how the output is laid out. Plain numbers, no TIR."""

from __future__ import annotations

from dataclasses import dataclass

from ...language.lane_order import LANES
from ..float_spec import FloatConv2dSpec, Interleave
from ..spec import Conv2dSpec
from .packing import Reduction


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """Where the elements of each output pixel's window lie in the source, and how the output is laid out.

    Parameters
    ----------
    images, rows, columns
        Output pixels.
    row_stride, column_stride
        Elements of the source from one output pixel's window to the next one's.
    image_stride
        Elements of the source from one image to the next; unused with a scratch.
    reduction
        The walk over one window.
    groups, group_inputs, group_outputs
        Channels.
    stack
        How many images in a row have weights of their own.
    interleave
        Where the outputs lie among those of other convolutions; None where they lie alone.
    """

    images: int
    rows: int
    columns: int
    row_stride: int
    column_stride: int
    image_stride: int
    reduction: Reduction
    groups: int
    group_inputs: int
    group_outputs: int
    stack: int = 1
    interleave: Interleave | None = None

    @property
    def pixel_pitch(self) -> int:
        """Elements from one output pixel to the next of its row."""
        return self.channels * (1 if self.interleave is None else self.interleave.strides[1])

    @property
    def row_pitch(self) -> int:
        """Elements from one row of outputs to the next."""
        if self.interleave is None:
            return self.columns * self.channels
        return self.interleave.strides[0] * self.interleave.width * self.channels

    @property
    def channels(self) -> int:
        """Output channels of a pixel."""
        return self.groups * self.group_outputs

    @property
    def group_vectors(self) -> int:
        """Vectors of 16 lanes that hold a group's output channels."""
        return -(-self.group_outputs // LANES)

    @property
    def sets(self) -> int:
        """Sets of channels whose weights are packed one after the other."""
        return self.groups * self.stack


def is_pointwise(spec: Conv2dSpec | FloatConv2dSpec) -> bool:
    """Whether output pixels are input pixels, so that one without padding is one long column of them."""
    return spec.kernel == (1, 1) and spec.strides == (1, 1)


def geometry_of(
    spec: Conv2dSpec | FloatConv2dSpec, groups: int, group_inputs: int, *, padded_width: int | None, step: int = 4
) -> Geometry:
    """Lay out a convolution over its input (padded_width None) or over a scratch of `padded_width` columns."""
    kernel_h, kernel_w = spec.kernel
    channels = spec.in_channels
    group_outputs = spec.out_channels // groups
    stack = spec.stack if isinstance(spec, Conv2dSpec) else 1
    interleave = spec.interleave if isinstance(spec, FloatConv2dSpec) else None
    if padded_width is None and is_pointwise(spec) and interleave is None:
        images = 1 if stack == 1 else spec.batch
        pixels = spec.batch // images * spec.in_height * spec.in_width  # no border between rows or images: one long column
        return Geometry(
            images=images,
            rows=pixels,
            columns=1,
            row_stride=channels,
            column_stride=0,
            image_stride=0 if stack == 1 else pixels * channels,
            reduction=Reduction(taps=(), run=group_inputs, step=step),
            groups=groups,
            group_inputs=group_inputs,
            group_outputs=group_outputs,
            stack=stack,
        )
    row_size = (spec.in_width if padded_width is None else padded_width) * channels
    row_tap = (kernel_h, spec.dilation[0] * row_size)
    if groups == 1 and (spec.dilation[1] == 1 or kernel_w == 1):
        reduction = Reduction(taps=(row_tap,), run=kernel_w * channels, step=step)
    else:
        reduction = Reduction(taps=(row_tap, (kernel_w, spec.dilation[1] * channels)), run=group_inputs, step=step)
    return Geometry(
        images=spec.batch,
        rows=spec.out_height,
        columns=spec.out_width,
        row_stride=spec.strides[0] * row_size,
        column_stride=spec.strides[1] * channels,
        image_stride=spec.in_height * row_size,
        reduction=reduction,
        groups=groups,
        group_inputs=group_inputs,
        group_outputs=group_outputs,
        stack=stack,
        interleave=interleave,
    )
