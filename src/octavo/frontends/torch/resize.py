"""Our converters of PyTorch's resizing of images and rows. Imports no PyTorch.

TVM's sample by another grid, leave smoothing out, and have cubic curves of another slope. Where an image is smoothed while it is
made smaller (antialias), each side is a product with a matrix of weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..relax_ops import dtype_of, is_static, shape_of
from .conv1d import on_row
from .ops import Arguments, Converter

CUBIC = -0.75
"""Slope of PyTorch's cubic curve; of the smoothed one it is -0.5."""
_SMOOTH_CUBIC = -0.5


def _input(args: Arguments) -> Any:
    return args["input"] if "input" in args.values else args["self"]


def _sizes(args: Arguments, before: list[int]) -> tuple[list[int], list[float]]:
    """Return the sizes of a result and by how much it is sampled: whole sizes, else PyTorch samples by the declared factor."""
    wanted, factors = args["output_size"], args.values.get("scale_factors")
    if wanted is not None:
        sizes = [int(value) for value in wanted]
        return sizes, [size / own for size, own in zip(sizes, before, strict=True)]
    assert factors is not None, "the schema asks for one of the two"
    exact = [size * float(factor) for size, factor in zip(before, factors, strict=True)]
    return [int(value + 1e-9) for value in exact], [float(factor) for factor in factors]


def _resized(args: Arguments, method: str, transform: str, rounding: str) -> Callable[[Any], Any]:
    """Return what resizes an image; of a row the one axis has sizes."""
    axes = shape_of(_input(args))[2:]
    if not is_static(axes):
        raise RejectedOpError(f"an image of open size; {args.symbols.advice()}")
    size, factors = _sizes(args, axes)
    if any(abs(own * factor - value) > 1e-6 for own, factor, value in zip(axes, factors, size, strict=True)):
        # PyTorch then samples by the declared factor, Relax's op by the ratio of the sizes.
        said = " x ".join(map(str, axes))
        raise RejectedOpError(f"factors {factors} of an image {said} make no whole sizes; state sizes")
    return lambda image: ops.image.resize2d(
        image,
        size=size if len(size) == 2 else [1, *size],
        layout="NCHW",
        method=method,
        coordinate_transformation_mode=transform,
        rounding_method=rounding,
        cubic_alpha=CUBIC,
    )


def _nearest(args: Arguments) -> Any:
    return _resized(args, "nearest_neighbor", "asymmetric", "floor")(_input(args))


def _nearest_exact(args: Arguments) -> Any:
    return _resized(args, "nearest_neighbor", "half_pixel", "round_prefer_ceil")(_input(args))


def _corners(args: Arguments) -> str:
    return "align_corners" if args["align_corners"] else "half_pixel"


def _linear(args: Arguments) -> Any:
    return _resized(args, "linear", _corners(args), "")(_input(args))


def _cubic(args: Arguments) -> Any:
    return _resized(args, "cubic", _corners(args), "")(_input(args))


def _nearest_row(args: Arguments) -> Any:
    return on_row(args, _input(args), _resized(args, "nearest_neighbor", "asymmetric", "floor"))


def _linear_row(args: Arguments) -> Any:
    return on_row(args, _input(args), _resized(args, "linear", _corners(args), ""))


def _smoothed(curve: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], reach: float) -> Converter:
    """Return a converter that smooths each axis while it resizes it."""

    def convert(args: Arguments) -> Any:
        x, shape = _input(args), shape_of(_input(args))
        if not is_static(shape[2:]):
            raise RejectedOpError(f"an image of open size; {args.symbols.advice()}")
        sizes, factors = _sizes(args, shape[2:])
        rows, columns = (
            _weights(own, size, _step(own, size, factor, corners=bool(args["align_corners"])), curve, reach)
            for own, size, factor in zip(shape[2:], sizes, factors, strict=True)
        )
        dtype = dtype_of(x)
        wide = args.step("columns", ops.matmul(x, relax.const(np.ascontiguousarray(columns.T), dtype)))
        return ops.matmul(relax.const(rows, dtype), wide)

    return convert


def _step(own: int, size: int, factor: float, *, corners: bool) -> float:
    """Return how far apart, in pixels of the image that is read, those of the result are."""
    if corners:
        return (own - 1) / (size - 1) if size > 1 else 0.0
    return 1 / factor


def _weights(
    own: int, size: int, step: float, curve: Callable[[npt.NDArray[Any]], npt.NDArray[Any]], reach: float
) -> npt.NDArray[Any]:
    """Return the share of each pixel that is read in each of the result (ATen, _compute_weights_aa)."""
    wide = max(step, 1.0)
    result = np.zeros((size, own))
    for place in range(size):
        center = step * (place + 0.5)
        first, end = max(int(center - reach * wide + 0.5), 0), min(int(center + reach * wide + 0.5), own)
        parts = curve(np.abs((np.arange(first, end) - center + 0.5) / wide))
        result[place, first:end] = parts / parts.sum()
    return result


def _triangle(distance: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.maximum(1 - distance, 0)


def _curve(distance: npt.NDArray[Any]) -> npt.NDArray[Any]:
    slope = _SMOOTH_CUBIC
    near = ((slope + 2) * distance - (slope + 3)) * distance * distance + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * slope
    return np.where(distance < 1, near, np.where(distance < 2, far, 0))


RESIZE: dict[str, Converter] = {
    "aten._upsample_bicubic2d_aa.vec": _smoothed(_curve, 2.0),
    "aten._upsample_bilinear2d_aa.vec": _smoothed(_triangle, 1.0),
    "aten._upsample_nearest_exact2d.vec": _nearest_exact,
    "aten.upsample_bicubic2d.vec": _cubic,
    "aten.upsample_bilinear2d.vec": _linear,
    "aten.upsample_linear1d.vec": _linear_row,
    "aten.upsample_nearest1d.vec": _nearest_row,
    "aten.upsample_nearest2d.vec": _nearest,
}
"""Our converters by op and overload."""
