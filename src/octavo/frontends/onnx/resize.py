"""Our converters of Resize and Upsample: images by one op, all other forms axis by axis.

Relax's op resizes the two spatial axes of an image by the ratio of its sizes. ONNX's samples by the scales that a node states,
along any axes, of a part of the data, and over more neighbors than one (antialias): what that op does not do is picked along each
axis (nearest), or multiplied by the matrix of its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from ...ir.graph.dataflow import call_to
from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..relax_ops import dtype_of, shape_of
from .ops import Converter, NodeContext, input_at, known_value

_TRANSFORMS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""What Relax's op knows."""
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Axis:
    """What becomes of one axis: sizes before and after, by what factor it is sampled, and which part of it."""

    size: int
    target: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    @property
    def stays(self) -> bool:
        """Whether nothing changes along it."""
        return self.size == self.target and abs(self.scale - 1) < 1e-9 and (self.start, self.end) == (0.0, 1.0)

    @property
    def is_exact(self) -> bool:
        """Whether the factor is the ratio of the sizes."""
        return abs(self.size * self.scale - self.target) <= 1e-4 * self.target

    @property
    def is_multiple(self) -> bool:
        """Whether that ratio is a whole number, or one over one: then rounding decides no neighbor."""
        low, high = sorted((self.size, self.target))
        return high % low == 0


def _resize(context: NodeContext, inputs: list[Any]) -> Any:
    data, shape = inputs[0], shape_of(inputs[0])
    is_legacy = context.op == "Upsample" or context.opset < 11
    axes = _axes_of(context, inputs, shape)
    mode, transform = context.text("mode", "nearest"), _transformation(context, is_legacy=is_legacy)
    if all(axis.stays for axis in axes) and transform != "tf_crop_and_resize":
        return data
    is_image = len(shape) == 4 and axes[0].stays and axes[1].stays and transform in _TRANSFORMS
    is_image = is_image and all(axis.is_exact for axis in axes)
    if is_image and mode == "nearest":
        rounding = _nearest_mode(context, is_legacy=is_legacy)
        # Between Q and DQ one integer kernel picks along both axes, by float32 positions as ONNX Runtime's are.
        in_integers = call_to(context.definition(data), "dequantize") is not None
        is_image = in_integers or all(_is_settled(axis, transform, rounding) for axis in axes[2:])
    if is_image and not context.attrs.get("antialias", 0):
        return _image(context, data, [axis.target for axis in axes[2:]], transform, is_legacy=is_legacy)
    return _by_axes(context, data, axes, transform, is_legacy=is_legacy)


def _axes_of(context: NodeContext, inputs: list[Any], shape: Sequence[int]) -> list[_Axis]:
    """Return what becomes of each axis."""
    is_legacy = context.op == "Upsample" or context.opset < 11
    roi, scales = (None, input_at(inputs, 1)) if is_legacy else (input_at(inputs, 1), input_at(inputs, 2))
    sizes, rank = None if is_legacy else input_at(inputs, 3), len(shape)
    places = [axis % rank for axis in context.ints("axes", range(rank))]
    targets = [] if sizes is None else [int(size) for size in known_value(sizes, "sizes")]
    if targets:
        factors = [target / shape[axis] for target, axis in zip(targets, places, strict=True)]
        factors, targets = _kept_ratio(context, factors, targets, [shape[axis] for axis in places])
    else:
        given = context.attrs.get("scales") if is_legacy and scales is None else known_value(scales, "scales")
        factors = [float(factor) for factor in ([] if given is None else given)]
        targets = [int(np.floor(shape[axis] * factor + 1e-9)) for axis, factor in zip(places, factors, strict=True)]
    if min(targets, default=1) < 1:
        raise RejectedOpError(f"scales {factors} leave nothing of an input of shape {list(shape)}")
    axes = [_Axis(size=size, target=size, scale=1.0) for size in shape]
    has_part = roi is not None and context.text("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    ends = known_value(roi, "roi").reshape(-1).tolist() if has_part else []
    for number, axis in enumerate(places):
        start, end = (ends[number], ends[len(places) + number]) if ends else (0.0, 1.0)
        axes[axis] = _Axis(size=shape[axis], target=targets[number], scale=factors[number], start=start, end=end)
    return axes


def _kept_ratio(
    context: NodeContext, factors: list[float], targets: list[int], sizes: Sequence[int]
) -> tuple[list[float], list[int]]:
    """Return factors and sizes of all axes, of one factor where the ratio of the sizes is to stay."""
    policy = context.text("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return factors, targets
    if policy not in ("not_larger", "not_smaller"):
        raise RejectedOpError(f"keep_aspect_ratio_policy {policy!r} is none of stretch, not_larger, not_smaller")
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [factor] * len(factors), [int(factor * size + 0.5) for size in sizes]


def _by_axes(context: NodeContext, data: Any, axes: Sequence[_Axis], transform: str, *, is_legacy: bool) -> Any:
    """Resize one axis after another."""
    mode, dtype, emit = context.text("mode", "nearest"), dtype_of(data), context.builder.emit
    if mode != "nearest" and not dtype.startswith("float"):
        raise RejectedOpError(f"mode {mode!r} of {dtype} is supported for images resized by whole ratios alone")
    outside: npt.NDArray[Any] = np.zeros([1] * len(axes), bool)
    for place, axis in enumerate(axes):
        if axis.stays:
            continue
        at = _coordinates(axis, transform)
        shape = [axis.target if each == place else 1 for each in range(len(axes))]
        if transform == "tf_crop_and_resize":
            outside = outside | ((at < 0) | (at > axis.size - 1)).reshape(shape)
        if mode == "nearest":
            indices = _neighbors(axis, at, _nearest_mode(context, is_legacy=is_legacy))
            data = emit(ops.take(data, relax.const(indices, "int64"), axis=place, mode="clip"))
        else:
            data = _weighted(emit, data, place, _weights(context, axis, at, mode).astype(dtype))
    if outside.any():
        fill = relax.const(np.asarray(context.attrs.get("extrapolation_value", 0.0), dtype), dtype)
        data = emit(ops.where(relax.const(outside, "bool"), fill, data))
    return data


def _is_settled(axis: _Axis, transform: str, rounding: str) -> bool:
    """Return whether Relax's op picks the neighbors that ONNX means, however its positions are rounded to float32."""
    if axis.is_multiple:
        return True
    at = _coordinates(axis, transform)
    margin = 1e-4 + 1e-6 * axis.size  # more than any position is off, and than the 1e-5 that floor and ceil forgive
    low, high = (_neighbors(axis, at + error, rounding) for error in (-margin, margin))
    return np.array_equal(low, high)


def _neighbors(axis: _Axis, at: _Floats, rounding: str) -> npt.NDArray[np.int64]:
    return np.clip(_rounded(at, rounding), 0, axis.size - 1).astype(np.int64)


def _nearest_mode(context: NodeContext, *, is_legacy: bool) -> str:
    return "floor" if is_legacy else context.text("nearest_mode", "round_prefer_floor")


def _coordinates(axis: _Axis, transform: str) -> _Floats:
    """Return where each place of the result lies in the data."""
    place, length = np.arange(axis.target, dtype=np.float64), axis.scale * axis.size
    if transform == "align_corners":
        return place * 0 if length == 1 else place * (axis.size - 1) / (length - 1)
    if transform == "asymmetric":
        return place / axis.scale
    if transform == "tf_crop_and_resize":
        span = (axis.end - axis.start) * (axis.size - 1)
        first = axis.start * (axis.size - 1)
        return place * 0 + first + span / 2 if length == 1 else first + place * span / (length - 1)
    if transform == "pytorch_half_pixel" and length == 1:
        return place * 0 - 0.5
    if transform in ("half_pixel", "pytorch_half_pixel"):
        return (place + 0.5) / axis.scale - 0.5
    if transform == "half_pixel_symmetric":
        return axis.size / 2 * (1 - axis.target / length) + (place + 0.5) / axis.scale - 0.5
    raise RejectedOpError(f"coordinate_transformation_mode {transform!r} is unknown")


def _rounded(at: _Floats, rounding: str) -> _Floats:
    known = {
        "round_prefer_floor": lambda: np.ceil(at - 0.5),
        "round_prefer_ceil": lambda: np.floor(at + 0.5),
        "floor": lambda: np.floor(at),
        "ceil": lambda: np.ceil(at),
    }
    if rounding not in known:
        raise RejectedOpError(f"nearest_mode {rounding!r} is none of {', '.join(known)}")
    return known[rounding]()


def _weights(context: NodeContext, axis: _Axis, at: _Floats, mode: str) -> _Floats:
    """Return the matrix [target, size] of what each place of the result takes of the data."""
    if mode not in ("linear", "cubic"):
        raise RejectedOpError(f"mode {mode!r} is none of nearest, linear, cubic")
    widening = min(axis.scale, 1.0) if context.attrs.get("antialias", 0) else 1.0
    reach = (1 if mode == "linear" else 2) / widening
    first = np.floor(at - reach).astype(np.int64)
    taps = first[:, None] + np.arange(int(np.ceil(2 * reach)) + 2)
    distance = np.abs(taps - at[:, None]) * widening
    kernel = (
        np.clip(1 - distance, 0, 1) if mode == "linear" else _cubic(distance, float(context.attrs.get("cubic_coeff_a", -0.75)))
    )
    if context.attrs.get("exclude_outside", 0):
        kernel = np.where((taps < 0) | (taps >= axis.size), 0, kernel)
    kernel = kernel / kernel.sum(axis=1, keepdims=True)
    matrix = np.zeros((axis.target, axis.size))
    np.add.at(matrix, (np.arange(axis.target)[:, None], np.clip(taps, 0, axis.size - 1)), kernel)
    return matrix


def _cubic(distance: _Floats, a: float) -> _Floats:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def _weighted(emit: Any, data: Any, place: int, matrix: npt.NDArray[Any]) -> Any:
    """Multiply one axis by a matrix."""
    rank = len(shape_of(data))
    if place == rank - 2:
        return emit(ops.matmul(relax.const(matrix), data))
    order = [axis for axis in range(rank) if axis != place] + [place]
    last = data if place == rank - 1 else emit(ops.permute_dims(data, order))
    product = emit(ops.matmul(last, relax.const(np.ascontiguousarray(matrix.T))))
    return product if place == rank - 1 else emit(ops.permute_dims(product, np.argsort(order).tolist()))


def _transformation(context: NodeContext, *, is_legacy: bool) -> str:
    return "asymmetric" if is_legacy else context.text("coordinate_transformation_mode", "half_pixel")


def resized(context: NodeContext, data: Any, target: Sequence[Any], *, is_legacy: bool) -> Any:
    """Return an image of other rows and columns by Relax's op. `is_legacy`: before opset 11."""
    if context.ints("axes", []) or context.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise RejectedOpError(f"attributes axes and keep_aspect_ratio_policy need fixed sizes; {context.symbols.advice()}")
    if context.attrs.get("antialias", 0):
        raise RejectedOpError(f"antialias needs fixed sizes; {context.symbols.advice()}")
    transform = _transformation(context, is_legacy=is_legacy)
    if transform not in _TRANSFORMS:
        raise RejectedOpError(f"coordinate_transformation_mode {transform!r} needs fixed sizes; {context.symbols.advice()}")
    return _image(context, data, target, transform, is_legacy=is_legacy)


def _image(context: NodeContext, data: Any, target: Sequence[Any], transform: str, *, is_legacy: bool) -> Any:
    mode = context.text("mode", "nearest")
    return ops.image.resize2d(
        data,
        size=tuple(target),
        layout="NCHW",
        method="nearest_neighbor" if mode == "nearest" else mode,
        coordinate_transformation_mode=transform,
        rounding_method=_nearest_mode(context, is_legacy=is_legacy),
        cubic_alpha=float(context.attrs.get("cubic_coeff_a", -0.75)),
        cubic_exclude=int(context.attrs.get("exclude_outside", 0)),
        extrapolation_value=float(context.attrs.get("extrapolation_value", 0.0)),
    )


CONVERTERS: dict[str, Converter] = {"Resize": _resize, "Upsample": _resize}
"""Our converters by ONNX op."""
