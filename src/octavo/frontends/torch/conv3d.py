"""Our converters of PyTorch's convolutions of volumes, as those of their slices. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.untyped import ops
from ..relax_ops import shape_of
from ..volumes import Volumes, Windows, transposed_images
from .conv1d import same_or_none
from .ops import Arguments, Converter, spread


def _conv3d(args: Arguments) -> Any:
    weight, dilation = args["weight"], spread(args["dilation"], 3)
    if isinstance(args["padding"], str):
        padding = same_or_none(args["padding"], shape_of(weight)[2:], dilation)
    else:
        padding = spread(args["padding"], 3) * 2
    windows = Windows(strides=spread(args["stride"], 3), padding=padding, dilation=dilation)

    def convolve(volume: Any) -> Any:
        return Volumes(args.emit).convolution(volume, weight, ops.nn.conv2d, windows, int(args["groups"]), _biased(args))

    return _on_volume(args, convolve)


def _conv_transpose3d(args: Arguments) -> Any:
    padding, extra = spread(args["padding"], 3), spread(args["output_padding"], 3)

    def convolve(volume: Any) -> Any:
        return Volumes(args.emit).transposed_convolution(
            volume,
            args["weight"],
            transposed_images,
            strides=spread(args["stride"], 3),
            windows=[(before, before - behind) for before, behind in zip(padding, extra, strict=True)],
            dilation=spread(args["dilation"], 3),
            groups=int(args["groups"]),
            finish=_biased(args),
        )

    return _on_volume(args, convolve)


def _biased(args: Arguments) -> Callable[[Any], Any]:
    bias = args["bias"]
    return lambda images: images if bias is None else ops.add(images, args.emit(ops.reshape(bias, [1, -1, 1, 1])))


def _on_volume(args: Arguments, op: Callable[[Any], Any]) -> Any:
    """Apply an op on volumes to one without batch, too."""
    x = args["input"]
    if len(shape_of(x)) == 5:
        return op(x)
    return ops.squeeze(args.emit(op(args.emit(ops.expand_dims(x, 0)))), [0])


CONV3D: dict[str, Converter] = {
    "aten.conv3d.default": _conv3d,
    "aten.conv3d.padding": _conv3d,
    "aten.conv_transpose3d.input": _conv_transpose3d,
}
"""Our converters by op and overload."""
