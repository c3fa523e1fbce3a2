"""Convolutions and pools of volumes [batch, channels, depth, height, width] as those of images, for every source format.

Integer kernels know images. A volume is seen as a batch of its slices, an image each. The taps of a kernel along the depth are
slices side by side, as more channels of one image: the products and their sums are the convolution's own, in one accumulator. A
pool goes over each slice, then along the depth. Knows no file format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import tvm
from tvm.tirx import IntImm

from ..ir.untyped import ops
from .relax_ops import shape_of

SWAPPED = [0, 2, 1, 3, 4]
"""Axes of a volume whose channels and depth change places; to do so twice changes nothing."""


class _Slices(NamedTuple):
    """Volumes as images: `value` is [batch * depth, channels, height, width]."""

    value: Any
    batch: Any
    depth: Any


class _Step(NamedTuple):
    """Slices first, first + stride ...: `count` of them, by place in a volume; those outside of it are 0."""

    first: int
    stride: int
    count: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    """How windows go over a volume, by depth, height, width; `padding` before, then behind."""

    strides: Sequence[int]
    padding: Sequence[Any]
    dilation: Sequence[int]

    def of_images(self) -> dict[str, list[Any]]:
        """Return the attributes of an op on images."""
        padding = [*self.padding[1:3], *self.padding[4:6]]
        return {"strides": list(self.strides[1:]), "padding": padding, "dilation": list(self.dilation[1:])}


class Volumes:
    """Writes ops of volumes; `emit` binds a step. Steps to slices that were just put together `keep_slices` takes out."""

    def __init__(self, emit: Callable[[Any], Any]) -> None:
        self._emit = emit

    def _slices(self, volume: Any) -> _Slices:
        batch, channels, depth, height, width = shape_of(volume)
        swapped = self._emit(ops.permute_dims(volume, SWAPPED))
        return _Slices(self._emit(ops.reshape(swapped, [batch * depth, channels, height, width])), batch, depth)

    def _volume(self, slices: _Slices) -> Any:
        shape = [slices.batch, slices.depth, *shape_of(slices.value)[1:]]
        return ops.permute_dims(self._emit(ops.reshape(slices.value, shape)), SWAPPED)

    def convolution(
        self,
        data: Any,
        weight: Any,
        convolve: Callable[..., Any],
        windows: Windows,
        groups: int,
        finish: Callable[[Any], Any],
    ) -> Any:
        """Return the convolution of a volume by a weight [out, in / groups, depth, height, width].

        Parameters
        ----------
        convolve
            The op on images.
        finish
            Adds to the slices what is added to the volume: a bias.
        """
        outputs, inputs, taps, *kernel = shape_of(weight)
        slices, stride, dilation, before = self._slices(data), windows.strides[0], windows.dilation[0], windows.padding[0]
        if taps > 1 and kernel == [1, 1] and list(windows.strides[1:]) == [1, 1] and not any(windows.of_images()["padding"]):
            return self._volume(self._along(slices, weight, convolve, windows, groups, finish))
        count = (slices.depth + before + windows.padding[3] - dilation * (taps - 1) - 1) // stride + 1
        read = self._taps(slices, [_Step(tap * dilation - before, stride, count) for tap in range(taps)], groups)
        if taps > 1 and groups == 1:
            weight = self._emit(ops.permute_dims(weight, SWAPPED))
        weight = self._emit(ops.reshape(weight, [outputs, inputs * taps, *kernel]))
        result = convolve(read, weight, groups=groups, **windows.of_images())
        return self._volume(_Slices(self._emit(finish(self._emit(result))), slices.batch, count))

    def _along(
        self,
        slices: _Slices,
        weight: Any,
        convolve: Callable[..., Any],
        windows: Windows,
        groups: int,
        finish: Callable[[Any], Any],
    ) -> _Slices:
        """Return the convolution of slices by taps along the depth alone: the depth and all pixels of a slice make an image.

        Channels last, where kernels have them, that image and the slices are the same bytes.
        """
        (value, batch, depth), (outputs, inputs, taps) = slices, shape_of(weight)[:3]
        _, channels, height, width = shape_of(value)
        image = self._last(value, [batch, depth, height * width, channels])
        weight = self._emit(ops.reshape(weight, [outputs, inputs, taps, 1]))
        along = Windows(
            strides=[1, windows.strides[0], 1],
            padding=[0, windows.padding[0], 0, 0, windows.padding[3], 0],
            dilation=[1, windows.dilation[0], 1],
        )
        result = self._emit(finish(self._emit(convolve(image, weight, groups=groups, **along.of_images()))))
        count = shape_of(result)[2]
        return _Slices(self._last(result, [batch * count, height, width, outputs]), batch, count)

    def _last(self, value: Any, shape: Sequence[Any]) -> Any:
        """Return images in another shape of that kind, which is said channels last: then both are the same bytes there."""
        last = self._emit(ops.permute_dims(value, [0, 2, 3, 1]))
        return self._emit(ops.permute_dims(self._emit(ops.reshape(last, shape)), [0, 3, 1, 2]))

    def _taps(self, slices: _Slices, steps: Sequence[_Step], groups: int) -> Any:
        """Return what each of some steps reads, side by side as channels.

        Channels of one group stay together: their taps stand behind each other within it, else behind all channels.
        """
        parts = self._parts(slices, steps)
        if len(parts) == 1:
            return parts[0]
        if groups == 1:
            return self._emit(ops.concat(parts, 1))
        rows, channels, height, width = shape_of(parts[0])
        by_channel = [self._emit(ops.reshape(part, [rows, channels, 1, height * width])) for part in parts]
        return self._emit(ops.reshape(self._emit(ops.concat(by_channel, 2)), [rows, channels * len(parts), height, width]))

    def _parts(self, slices: _Slices, steps: Sequence[_Step]) -> list[Any]:
        """Return the slices that each of some steps reads."""
        value, batch, depth = slices
        # One sample's slices are rows of the batch; several samples' are picked sample by sample.
        axis = 0 if batch == 1 else 1
        image = shape_of(value)[1:]
        value = value if batch == 1 else self._emit(ops.reshape(value, [batch, depth, *image]))
        outside = [known for step in steps if (known := _outside(step, depth)) is not None]
        if len(outside) < len(steps):
            # Padding first serves every step.
            before = max(0, *(-step.first for step in steps))
            behind = max(0, *(known_size(step.first + (step.count - 1) * step.stride + 1 - depth) or 0 for step in steps))
            value, depth = self._padded(value, axis, (before, behind)), depth + before + behind
            steps = [_Step(step.first + before, step.stride, step.count) for step in steps]
            outside = [(0, 0)] * len(steps)
        parts: list[Any] = []
        for (first, stride, count), (before, behind) in zip(steps, outside, strict=True):
            part, begin, length = value, first + before * stride, count - before - behind
            if begin > 0 or stride > 1 or known_size(length - depth) != 0:
                end = begin + (length - 1) * stride + 1
                part = self._emit(ops.strided_slice(value, [axis], [begin], [end], [stride], assume_inbound=True))
            part = self._padded(part, axis, (before, behind))
            parts.append(part if batch == 1 else self._emit(ops.reshape(part, [batch * count, *image])))
        return parts

    def _padded(self, value: Any, axis: int, around: tuple[int, int]) -> Any:
        if max(around) == 0:
            return value
        widths = [0] * 2 * value.ty.ndim
        widths[2 * axis : 2 * axis + 2] = around
        return self._emit(ops.nn.pad(value, widths))

    def transposed_convolution(
        self,
        data: Any,
        weight: Any,
        convolve: Callable[..., Any],
        *,
        strides: Sequence[int],
        windows: Sequence[tuple[int, int]],
        dilation: Sequence[int],
        groups: int,
        finish: Callable[[Any], Any],
    ) -> Any:
        """Return the transposed convolution of a volume by a weight [in, out / groups, depth, height, width].

        The slice o of the result is the sum over taps of what the slice (o + before - tap * dilation) / stride gives, where that
        is whole: slices of zeros are put between those of the data, then it is a convolution along the depth.

        Parameters
        ----------
        convolve
            Makes images of images and a weight; "strides", "dilation" and "groups" are given, "windows" by height and width.
        windows
            By axis, what is taken off the sums before and behind.
        finish
            Adds to the slices what is added to the volume: a bias.
        """
        (value, batch, depth), stride = self._slices(data), strides[0]
        inputs, outputs, taps, *kernel = shape_of(weight)
        before, after = windows[0]
        count = stride * (depth - 1) + dilation[0] * (taps - 1) + 1 - before - after
        if stride > 1:
            rows, channels, height, width = shape_of(value)
            lines = self._emit(ops.reshape(value, [rows, 1, channels, height * width]))
            value = self._emit(ops.reshape(self._padded(lines, 1, (0, stride - 1)), [rows * stride, channels, height, width]))
        steps = [_Step(before - tap * dilation[0], 1, count) for tap in range(taps)]
        read = self._taps(_Slices(value, batch, depth * stride), steps, groups)
        if taps > 1:
            weight = self._emit(ops.permute_dims(weight, [2, 0, 1, 3, 4] if groups == 1 else SWAPPED))
        result = convolve(
            read,
            self._emit(ops.reshape(weight, [inputs * taps, outputs, *kernel])),
            strides=strides[1:],
            windows=windows[1:],
            dilation=dilation[1:],
            groups=groups,
        )
        return self._volume(_Slices(self._emit(finish(self._emit(result))), batch, count))

    def pool(self, data: Any, op: Callable[..., Any], size: Sequence[int], windows: Windows, **modes: bool) -> Any:
        """Return a pool of a volume by windows of a size: `op`, a pool of images, over each slice and then along the depth.

        A largest value is one of largest values; an average of averages of as many values each is the average of all, and how
        many values a window has but for padding is the product of how many it has along each axis.
        """
        slices, plane, volume = self._slices(data), windows.of_images(), data
        if list(size[1:]) != [1, 1] or plane["strides"] != [1, 1] or any(plane["padding"]):
            value = self._emit(op(slices.value, pool_size=list(size[1:]), **plane, **modes))
            slices = _Slices(value, slices.batch, slices.depth)
            volume = self._emit(self._volume(slices))
        taps, stride, around = size[0], windows.strides[0], (windows.padding[0], windows.padding[3])
        if taps == stride == 1 and not any(around):
            return volume
        if op is ops.nn.max_pool2d and windows.dilation[0] == 1 and not (any(around) or modes["ceil_mode"]):
            count = (slices.depth - taps) // stride + 1
            parts = self._parts(slices, [_Step(tap, stride, count) for tap in range(taps)])
            value = reduce(lambda one, other: self._emit(ops.maximum(one, other)), parts)
            return self._volume(_Slices(value, slices.batch, count))
        batch, channels, depth, height, width = shape_of(volume)
        columns = self._emit(ops.reshape(volume, [batch, channels, depth, height * width]))
        along = {"strides": [stride, 1], "padding": [around[0], 0, around[1], 0], "dilation": [windows.dilation[0], 1]}
        pooled = self._emit(op(columns, pool_size=[taps, 1], **along, **modes))
        return ops.reshape(pooled, [batch, channels, shape_of(pooled)[2], height, width])


def transposed_images(x: Any, w: Any, *, windows: Sequence[tuple[int, int]], **attributes: Any) -> Any:
    """Return a transposed convolution of images; windows say what is taken off the sums, less than nothing is added."""
    return ops.nn.conv2d_transpose(
        x,
        w,
        padding=[before for before, _ in windows] + [max(after, 0) for _, after in windows],
        output_padding=[max(-after, 0) for _, after in windows],
        data_layout="NCHW",
        kernel_layout="IOHW",
        **attributes,
    )


def _outside(step: _Step, depth: Any) -> tuple[int, int] | None:
    """Return how many slices of a step lie before and behind a volume; None where all do, or the depth is open and decides."""
    beyond = known_size(step.first + (step.count - 1) * step.stride - depth)
    if beyond is None:
        return None
    before, behind = max(0, -(step.first // step.stride)), max(0, beyond // step.stride + 1)
    return None if isinstance(step.count, int) and before + behind >= step.count else (before, behind)


def known_size(size: Any) -> int | None:
    """Return a size that is a number, as it is or once simplified."""
    known = size if isinstance(size, int) else tvm.sym.Analyzer().simplify(size)
    return int(known) if isinstance(known, int | IntImm) else None
