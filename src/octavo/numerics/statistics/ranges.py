"""From a range to quantization parameters: the formulas for scale and zero point. Numbers in, numbers out.

Which range a tensor gets is not chosen here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..quant_params import INTEGER_RANGE, PerAxis, PerBlock, PerTensor, QuantParams

SMALLEST_RANGE = 2.0**-100
"""Widths below this are taken as zero: the scale and its reciprocal must be normal float32 numbers, products of scales too."""
DEAD_CHANNEL = 2.0**-24
"""A channel whose weights are all smaller than this fraction of the tensor's largest is dead: below float32's own resolution."""

CLIPPED = tuple(1 - step / 64 for step in range(48))
"""Fractions of the largest magnitude that weights are clamped to, the whole first."""


BLOCK_CLIPPED = tuple(1 - step / 20 for step in range(9))
"""Fractions of the range that a few weights of a block are clamped to, the whole first: more of them leave hardly less."""

_AT_ONCE = 2**16
"""Weights that are rounded together, about: they and what becomes of them stay in a core's cache."""


def power_of_two_above(scale: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the smallest power of two that is not below a positive scale, for each of them."""
    fraction, exponent = np.frexp(np.asarray(scale, np.float64))
    return np.ldexp(1.0, np.where(fraction == 0.5, exponent - 1, exponent))


def asymmetric_params(low: float, high: float, dtype: str) -> QuantParams:
    """Return per-tensor parameters of a range: scale = (high - low) / (qmax - qmin), zero_point = rint(qmin - low / scale).

    The range is first extended to include 0, so that 0 is exact. A range without width (all zeros) gets the scale
    1 / (qmax - qmin).

    Parameters
    ----------
    low, high
        Finite, low <= high.
    dtype
        "uint8", "int8", ...
    """
    qmin, qmax = INTEGER_RANGE[dtype]
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    width = high - low if high - low >= SMALLEST_RANGE else 1.0
    scale = np.float32(width / (qmax - qmin))
    zero_point = int(np.clip(np.rint(qmin - low / float(scale)), qmin, qmax))
    return QuantParams.per_tensor(dtype, float(scale), zero_point)


def symmetric_params(
    weight: npt.NDArray[np.float32],
    dtype: str,
    *,
    axis: int | None,
    floor: npt.NDArray[np.float64] | None = None,
    narrow: bool = True,
    power_of_two: bool = False,
    bits: int | None = None,
    least_error: bool = False,
    covering: npt.NDArray[np.float64] | None = None,
) -> QuantParams:
    """Return symmetric parameters of a weight: scale = max|w| / qmax, zero point 0, integers in [-qmax; qmax].

    With the least integer, too (not `narrow`), the scale is the greater of max(w) / qmax and max(-w) / -qmin.
    A dead channel (DEAD_CHANNEL) gets the scale of the tensor's largest weight, an all-zero tensor 1 / qmax.

    Parameters
    ----------
    axis
        Channel axis of per-axis parameters, or None for per-tensor.
    floor
        Smallest scale allowed, (channels,) or (), or None.
    narrow
        Whether the least integer of the dtype is left out.
    power_of_two
        Whether each scale becomes the smallest power of two that is not below it.
    bits
        Width of the integers in use, whose least one is left out: qmax = 2^(bits - 1) - 1. None: the whole dtype.
    least_error
        Whether a scale is the fraction of that (CLIPPED) with which rounding and clamping change the weights least, by squares.
    covering
        What `symmetric_scale` returns for the same, if that is known.
    """
    narrow, qmin, qmax = _symmetric_range(dtype, bits, narrow=narrow)
    if covering is None:
        covering = symmetric_scale(weight, dtype, axis=axis, narrow=narrow, bits=bits, least_error=least_error)
    scale = covering if floor is None else np.maximum(covering, floor)
    if power_of_two:
        scale = power_of_two_above(scale)
    scale = scale.astype(np.float32)
    return QuantParams(
        dtype=dtype,
        scale=scale,
        zero_point=np.zeros(scale.shape, np.int32),
        granularity=PerTensor() if axis is None else PerAxis(axis),
        qmin=-qmax if narrow else qmin,
        qmax=qmax,
    )


def symmetric_scale(
    weight: npt.NDArray[np.float32],
    dtype: str,
    *,
    axis: int | None,
    narrow: bool = True,
    bits: int | None = None,
    least_error: bool = False,
) -> npt.NDArray[np.float64]:
    """Return the scales of `symmetric_params` that have no floor and are no powers of two: all that reads the weight."""
    narrow, qmin, qmax = _symmetric_range(dtype, bits, narrow=narrow)
    axes = tuple(index for index in range(weight.ndim) if index != axis)
    ends = [np.asarray(each, np.float64) for each in (weight.max(axis=axes), weight.min(axis=axes))] if weight.size else []
    largest = np.maximum(ends[0], -ends[1]) if ends else np.zeros(())
    overall = float(largest.max(initial=0.0))
    if overall < SMALLEST_RANGE:
        overall = 1.0
    scale = largest / qmax
    if not narrow and ends:
        scale = np.maximum(np.maximum(ends[0], 0.0) / qmax, np.minimum(ends[1], 0.0) / qmin)
    scale = np.where(largest < overall * DEAD_CHANNEL, overall / qmax, scale)
    return _of_least_error(np.abs(weight.astype(np.float64)), scale, qmax, axis) if least_error else scale


def _symmetric_range(dtype: str, bits: int | None, *, narrow: bool) -> tuple[bool, int, int]:
    """Return whether the least integer is left out, and the first and last integer of the width in use, it apart."""
    qmin, qmax = INTEGER_RANGE[dtype]
    return (narrow, qmin, qmax) if bits is None else (True, qmin, min(qmax, 2 ** (bits - 1) - 1))


def half_scales(scale: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float32]:
    """Return scales of blocks rounded to float16, which kernels read in half the bytes; as float32 where that would lose bits.

    Dead blocks may have any scale: theirs become the least of float16.
    """
    info = np.finfo(np.float16)
    largest = float(scale.max(initial=0.0))
    is_dead = scale < largest * DEAD_CHANNEL * 16
    is_exact = bool((is_dead | (scale >= float(info.tiny))).all()) and float(info.tiny) <= largest <= float(info.max)
    if not is_exact:
        return scale.astype(np.float32)
    return np.where(is_dead, float(info.smallest_subnormal), scale).astype(np.float16).astype(np.float32)


def block_params(
    weight: npt.NDArray[np.float32], blocks: PerBlock, *, bits: int, asymmetric: bool = True, least_error: bool = True
) -> QuantParams:
    """Return int8 parameters of a weight in blocks, of integers in [-2^(bits - 1); 2^(bits - 1) - 1].

    A block's zero point is 0. With `asymmetric` it is what errs less: that of its range, or that (0 or -1) with which the end of
    the integers that reaches farther holds its largest magnitude.

    Parameters
    ----------
    blocks
        Its size divides the weight's along its axis.
    least_error
        Whether a scale is the fraction (BLOCK_CLIPPED) of what holds the whole range with which rounding and clamping change the
        weights least, by squares.
    """
    qmin, qmax = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    shape = list(weight.shape)
    shape[blocks.axis : blocks.axis + 1] = [shape[blocks.axis] // blocks.size, blocks.size]
    rows = np.moveaxis(weight.reshape(shape), blocks.axis + 1, -1)
    low, high = (np.asarray(each, np.float64) for each in (rows.min(axis=-1), rows.max(axis=-1)))
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    overall = float(max(high.max(initial=0.0), -low.min(initial=0.0)))
    span = np.maximum(high - low, (overall if overall >= SMALLEST_RANGE else 1.0) * DEAD_CHANNEL)
    mirrored = np.where(high > -low, -1, 0)
    of_range = np.clip(np.rint(qmin - low * (qmax - qmin) / span), qmin, qmax)
    points = [mirrored, of_range] if asymmetric else [np.zeros(span.shape)]
    choices: list[tuple[npt.NDArray[Any], npt.NDArray[np.float64]]] = []
    for point in points:
        covering = np.maximum(high / np.maximum(qmax - point, 0.5), low / np.minimum(qmin - point, -0.5))
        choices.append((point, np.maximum(covering, span / (qmax - qmin))))
    shares = BLOCK_CLIPPED if least_error else BLOCK_CLIPPED[:1]
    scale, zero_point = np.ones(span.shape), np.zeros(span.shape)
    count = max(1, _AT_ONCE // max(1, math.prod(rows.shape[1:])))
    for start in range(0, len(rows), count):
        part = slice(start, start + count)
        some = [(point[part], covering[part]) for point, covering in choices]
        scale[part], zero_point[part] = _least_error(rows[part].astype(np.float64), some, shares, (qmin, qmax))
    return QuantParams(
        dtype="int8",
        scale=half_scales(scale),
        zero_point=zero_point.astype(np.int32),
        granularity=blocks,
        qmin=qmin,
        qmax=qmax,
    )


def _least_error(
    rows: npt.NDArray[np.float64],
    choices: Sequence[tuple[npt.NDArray[Any], npt.NDArray[np.float64]]],
    shares: Sequence[float],
    ends: tuple[int, int],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return for each block the scale, a share of one that covers it, and the zero point with which it changes least."""
    blocks = rows.shape[:-1]
    least, scale, zero_point = np.full(blocks, np.inf), np.ones(blocks), np.zeros(blocks)
    changed = np.empty_like(rows)
    for point, covering in choices:
        first, last = ((end - point)[..., np.newaxis] for end in ends)
        for share in shares:
            tried = covering * share
            np.divide(rows, tried[..., np.newaxis], out=changed)
            np.rint(changed, out=changed)
            np.minimum(np.maximum(changed, first, out=changed), last, out=changed)
            np.multiply(changed, tried[..., np.newaxis], out=changed)
            np.square(np.subtract(changed, rows, out=changed), out=changed)
            error = changed.sum(axis=-1)
            is_less = error < least
            least = np.where(is_less, error, least)
            scale, zero_point = np.where(is_less, tried, scale), np.where(is_less, point, zero_point)
    return scale, zero_point


def _of_least_error(
    magnitude: npt.NDArray[np.float64], scale: npt.NDArray[np.float64], qmax: int, axis: int | None
) -> npt.NDArray[np.float64]:
    """Return for each channel the fraction of its scale with which its weights change least."""
    rows = magnitude.reshape(1, -1) if axis is None else np.moveaxis(magnitude, axis, 0).reshape(magnitude.shape[axis], -1)
    tried = np.array([scale.reshape(-1) * fraction for fraction in CLIPPED])
    errors = [(np.square(np.minimum(np.rint(rows / each[:, None]), qmax) * each[:, None] - rows)).sum(axis=1) for each in tried]
    return np.take_along_axis(tried, np.argmin(errors, axis=0)[None], axis=0).reshape(scale.shape)
