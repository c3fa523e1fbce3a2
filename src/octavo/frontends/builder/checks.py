"""What ModelBuilder checks: shapes, scales, zero points, weights, biases and windows. Builds nothing.

Every message opens with the name of the tensor that the user is about to make.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...errors import ModelError
from ...numerics import INTEGER_RANGE, PerAxis, PerTensor, QuantParams
from ..relax_ops import same_padding

Padding = Literal["VALID", "SAME"] | Sequence[int]

_EIGHT_BITS = ("int8", "uint8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """A window that slides over an image: numbers along height and width; padding is (top, left, bottom, right)."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    out: tuple[int, int]


def check_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape of at least one dimension, each a whole number of at least 1."""
    dims = listed(name, "shape", shape)
    if not dims or not all(_is_integer(dim) and dim >= 1 for dim in dims):
        raise ModelError(f"{name}: shape {dims} must list whole numbers of at least 1")
    return tuple(int(dim) for dim in dims)


def listed(name: str, what: str, value: Any) -> tuple[Any, ...]:
    """Return what a list or tuple holds."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ModelError(f"{name}: {what} must be a list or tuple, got {value!r}")
    return tuple(value)


def check_integer(name: str, what: str, value: Any) -> int:
    """Return a whole number."""
    if not _is_integer(value):
        raise ModelError(f"{name}: {what} must be a whole number, got {value!r}")
    return int(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_params(name: str, dtype: Any, scale: float, zero_point: int) -> QuantParams:
    """Return the parameters of an activation."""
    if not isinstance(dtype, str) or dtype not in _EIGHT_BITS:
        raise ModelError(f"{name}: dtype must be the name {' or '.join(map(repr, _EIGHT_BITS))}, got {dtype!r}")
    if np.ndim(scale) or np.ndim(zero_point):
        raise ModelError(f"{name}: activations have one scale and one zero point, got arrays")
    return _params(name, dtype, np.asarray(scale), np.asarray(zero_point), PerTensor())


def _params(
    name: str, dtype: str, scale: npt.NDArray[Any], zero_point: npt.NDArray[Any], granularity: PerTensor | PerAxis
) -> QuantParams:
    if scale.dtype.kind not in "fiu":
        raise ModelError(f"{name}: a scale must be a number, got {scale.tolist()!r}")
    if zero_point.dtype.kind not in "iu":
        raise ModelError(f"{name}: a zero point must be a whole number, got {zero_point.tolist()!r}")
    low, high = INTEGER_RANGE[dtype]
    # Compared before the casts below, which would wrap.
    if zero_point.size and not low <= int(zero_point.min()) <= int(zero_point.max()) <= high:
        raise ModelError(f"{name}: zero points must lie in [{low}; {high}], the range of {dtype}; got {zero_point.tolist()}")
    with np.errstate(over="ignore"):
        single = scale.astype(np.float32)
    if not (np.isfinite(single).all() and (single > 0).all()):
        raise ModelError(f"{name}: every scale must be positive and finite in float32, got {_worst(single)}")
    return QuantParams(dtype=dtype, scale=single, zero_point=zero_point.astype(np.int32), granularity=granularity)


def _worst(scale: npt.NDArray[np.float32]) -> float:
    bad = ~(np.isfinite(scale) & (scale > 0))
    return float(scale[bad].reshape(-1)[0])


def check_weight(name: str, weight: Any, scale: npt.ArrayLike, zero_point: npt.ArrayLike, *, rank: int) -> QuantParams:
    """Return the parameters of a weight whose last axis is the output channel."""
    layout = "HWIO" if rank == 4 else "(in, out)"
    if not isinstance(weight, np.ndarray) or str(weight.dtype) not in _EIGHT_BITS:
        given = weight.dtype if isinstance(weight, np.ndarray) else type(weight).__name__
        raise ModelError(f"{name}: the weight must be an int8 or uint8 NumPy array, got {given}; int4 values fit into int8")
    if weight.ndim != rank or 0 in weight.shape:
        raise ModelError(f"{name}: the weight must have {rank} dimensions, {layout}, none of them 0; got {weight.shape}")
    scales, points = np.asarray(scale), np.asarray(zero_point)
    channels = weight.shape[-1]
    for what, value in (("weight_scale", scales), ("weight_zero_point", points)):
        if value.shape not in ((), (channels,)):
            raise ModelError(f"{name}: {what} must be one number or {channels} (one for each output channel), got {value.shape}")
    if scales.shape == points.shape == ():
        return _params(name, str(weight.dtype), scales, points, PerTensor())
    scales, points = np.broadcast_to(scales, (channels,)), np.broadcast_to(points, (channels,))
    return _params(name, str(weight.dtype), scales, points, PerAxis(rank - 1))


def quantized_bias(name: str, bias: Any, x: QuantParams, weight: QuantParams, channels: int) -> QuantParams | None:
    """Return the parameters of an int32 bias, x's scale times the weight's; None for a float32 one."""
    if not isinstance(bias, np.ndarray) or str(bias.dtype) not in ("int32", "float32"):
        given = bias.dtype if isinstance(bias, np.ndarray) else type(bias).__name__
        raise ModelError(f"{name}: the bias must be an int32 or float32 NumPy array, got {given}")
    if bias.shape != (channels,):
        raise ModelError(f"{name}: the bias must have shape ({channels},), one value for each output channel; got {bias.shape}")
    if bias.dtype == np.float32:
        if not np.isfinite(bias).all():
            raise ModelError(f"{name}: the bias holds {float(bias[~np.isfinite(bias)][0])}; every value must be finite")
        return None
    scale = np.asarray(x.scale * weight.scale, np.float32)
    if not (scale > 0).all() or not np.isfinite(scale).all():
        raise ModelError(f"{name}: scale {float(x.scale)} of its input times weight_scale leaves float32's range")
    granularity = PerTensor() if scale.ndim == 0 else PerAxis(0)
    return QuantParams(dtype="int32", scale=scale, zero_point=np.zeros(scale.shape, np.int32), granularity=granularity)


def window(
    name: str, shape: tuple[int, ...], kernel: Sequence[int], strides: Sequence[int], padding: Any, dilation: Sequence[int]
) -> Window:
    """Return the window over an image of `shape` (NHWC) with explicit padding, and how many places it takes."""
    pairs = {what: _pair(name, what, value) for what, value in (("size", kernel), ("strides", strides), ("dilation", dilation))}
    sizes, steps, gaps = pairs["size"], pairs["strides"], pairs["dilation"]
    spans = [gap * (size - 1) + 1 for gap, size in zip(gaps, sizes, strict=True)]
    if isinstance(padding, str):
        if padding not in ("VALID", "SAME"):
            raise ModelError(f"{name}: padding must be 'VALID', 'SAME' or (top, left, bottom, right), got {padding!r}")
        rows = columns = (0, 0)
        if padding == "SAME":
            rows, columns = (same_padding(*axis) for axis in zip(shape[1:3], sizes, steps, gaps, strict=True))
        sides = (rows[0], columns[0], rows[1], columns[1])
    else:
        given = tuple(padding) if isinstance(padding, Iterable) else (padding,)
        if len(given) != 4 or not all(_is_integer(side) and side >= 0 for side in given):
            raise ModelError(f"{name}: padding must be 'VALID', 'SAME' or (top, left, bottom, right), got {given}")
        sides = (int(given[0]), int(given[1]), int(given[2]), int(given[3]))
    padded = (shape[1] + sides[0] + sides[2], shape[2] + sides[1] + sides[3])
    if spans[0] > padded[0] or spans[1] > padded[1]:
        raise ModelError(f"{name}: a window of {spans[0]} x {spans[1]} does not fit an image of {padded[0]} x {padded[1]}")
    out = ((padded[0] - spans[0]) // steps[0] + 1, (padded[1] - spans[1]) // steps[1] + 1)
    return Window(kernel=sizes, strides=steps, padding=sides, dilation=gaps, out=out)


def _pair(name: str, what: str, value: Sequence[int]) -> tuple[int, int]:
    if isinstance(value, int | np.integer):
        raise ModelError(f"{name}: {what} must be a pair (along height, along width), got {value}")
    pair = tuple(value)
    if len(pair) != 2 or not all(_is_integer(item) and item >= 1 for item in pair):
        raise ModelError(f"{name}: {what} must be a pair of whole numbers of at least 1, got {pair}")
    return int(pair[0]), int(pair[1])
