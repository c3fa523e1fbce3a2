"""Our converters of PyTorch's one-dimensional ops, as those of an image of one row; and conv2d whose padding is a word.

Integer kernels know images. What follows such an op reads the image itself where it can, so that a normalization stands beside
its convolution. Imports no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ...ir.untyped import ops
from ..relax_ops import shape_of
from .ops import Arguments, Converter, batch_norm, batched, spread


def _one(value: Any) -> int:
    """Return the number of a list of one, or of a number."""
    return int(value) if isinstance(value, int) else int(value[0])


def _image(args: Arguments, x: Any) -> Any:
    """Return [batch, channels, width] as [batch, channels, 1, width]: the image itself where `x` is the row of one."""
    call: Any = args.builder.lookup_binding(x) if isinstance(x, relax.Var) else None
    if getattr(getattr(call, "op", None), "name", "") == "relax.squeeze":
        image = call.args[0]
        if image.ty.ndim == 4 and [int(axis) for axis in call.attrs.axis or ()] == [2]:
            return image
    return args.step("input", ops.expand_dims(x, 2))


def on_row(args: Arguments, x: Any, op: Callable[[Any], Any]) -> Any:
    """Apply an op on images to rows, with or without batch."""
    if len(shape_of(x)) == 3:
        return ops.squeeze(args.step("image", op(_image(args, x))), [2])
    return ops.squeeze(args.step("image", op(args.step("input", ops.expand_dims(x, [0, 2])))), [0, 2])


def same_or_none(padding: str, kernel: list[int], dilation: list[int]) -> list[int]:
    """Return the padding before each axis and then after each, for "same" or "valid"; the odd one of "same" goes after."""
    totals = [reach * (taps - 1) if padding == "same" else 0 for reach, taps in zip(dilation, kernel, strict=True)]
    before = [total // 2 for total in totals]
    return [*before, *(total - first for total, first in zip(totals, before, strict=True))]


def _convolution(
    args: Arguments, weight: Any, strides: list[int], padding: list[int], dilation: list[int]
) -> Callable[[Any], Any]:
    bias = args["bias"]

    def convolve(image: Any) -> Any:
        result = ops.nn.conv2d(image, weight, strides=strides, padding=padding, dilation=dilation, groups=int(args["groups"]))
        return result if bias is None else ops.add(args.emit(result), args.emit(ops.reshape(bias, [1, -1, 1, 1])))

    return convolve


def _conv2d_padding(args: Arguments) -> Any:
    weight, dilation = args["weight"], spread(args["dilation"], 2)
    padding = same_or_none(args["padding"], shape_of(weight)[2:], dilation)
    return batched(args, args["input"], _convolution(args, weight, spread(args["stride"], 2), padding, dilation))


def _conv1d(args: Arguments) -> Any:
    weight, dilation = args["weight"], _one(args["dilation"])
    if isinstance(args["padding"], str):
        [before, after] = same_or_none(args["padding"], shape_of(weight)[2:], [dilation])
    else:
        before = after = _one(args["padding"])
    weight = args.emit(ops.expand_dims(weight, 2))
    op = _convolution(args, weight, [1, _one(args["stride"])], [0, before, 0, after], [1, dilation])
    return on_row(args, args["input"], op)


def _conv_transpose1d(args: Arguments) -> Any:
    padding, bias = _one(args["padding"]), args["bias"]
    weight = args.emit(ops.expand_dims(args["weight"], 2))

    def convolve(image: Any) -> Any:
        result = ops.nn.conv2d_transpose(
            image,
            weight,
            strides=[1, _one(args["stride"])],
            padding=[0, padding, 0, padding],
            output_padding=[0, _one(args["output_padding"])],
            dilation=[1, _one(args["dilation"])],
            groups=int(args["groups"]),
        )
        return result if bias is None else ops.add(args.emit(result), args.emit(ops.reshape(bias, [1, -1, 1, 1])))

    return on_row(args, args["input"], convolve)


def _batch_norm(args: Arguments) -> Any:
    """Rows become images; [batch, channels] and images stay."""
    x = args["input"]
    if len(shape_of(x)) != 3:
        return batch_norm(args, x)
    return on_row(args, x, lambda image: batch_norm(args, image))


def _window(args: Arguments) -> dict[str, Any]:
    """Return what the two pools share; PyTorch's stride is the window's own size if it is left out."""
    kernel = _one(args["kernel_size"])
    padding = _one(args["padding"])
    return {
        "pool_size": [1, kernel],
        "strides": [1, _one(args["stride"]) if args["stride"] else kernel],
        "padding": [0, padding, 0, padding],
        "ceil_mode": bool(args["ceil_mode"]),
    }


def _max_pool1d(args: Arguments) -> Any:
    dilation = [1, _one(args["dilation"])]
    return on_row(args, args["self"], lambda image: ops.nn.max_pool2d(image, **_window(args), dilation=dilation))


def _avg_pool1d(args: Arguments) -> Any:
    counts = bool(args["count_include_pad"])
    return on_row(args, args["self"], lambda image: ops.nn.avg_pool2d(image, **_window(args), count_include_pad=counts))


def _adaptive_avg_pool1d(args: Arguments) -> Any:
    width = _one(args["output_size"])
    return on_row(args, args["self"], lambda image: ops.nn.adaptive_avg_pool2d(image, [1, width]))


CONV1D: dict[str, Converter] = {
    "aten._native_batch_norm_legit.no_stats": lambda args: (args.emit(_batch_norm(args)), None, None),
    "aten._native_batch_norm_legit_no_training.default": lambda args: (args.emit(_batch_norm(args)), None, None),
    "aten.adaptive_avg_pool1d.default": _adaptive_avg_pool1d,
    "aten.avg_pool1d.default": _avg_pool1d,
    "aten.batch_norm.default": _batch_norm,
    "aten.conv1d.default": _conv1d,
    "aten.conv1d.padding": _conv1d,
    "aten.conv2d.padding": _conv2d_padding,
    "aten.conv_transpose1d.default": _conv_transpose1d,
    "aten.max_pool1d.default": _max_pool1d,
}
"""Our converters by op and overload."""
