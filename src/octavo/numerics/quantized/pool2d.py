"""Oracles of pooling over rows and columns of quantized NHWC tensors. No TVM here."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..rounding.fixed_point import SHIFTS, ShiftRounding, rounded_quotient
from ..rounding.requantize import clamp, clamp_bounds, requantize
from ..window import UNIT_WINDOW, Window
from .float_mean import FloatMeanParameters, float_mean

IntegerArray = npt.NDArray[np.integer]
PoolRounding = Literal["half_even", "half_away", "half_even_stored"] | ShiftRounding
"""How an average becomes an integer: see `avg_pool2d`."""


def avg_pool2d(
    x: IntegerArray,
    *,
    kernel: tuple[int, int],
    window: Window = UNIT_WINDOW,
    out_shape: tuple[int, int],
    count_include_pad: bool = False,
    multiplier: float,
    input_zero_point: int,
    zero_point: int,
    qmin: int | None = None,
    qmax: int | None = None,
    dtype: str = "uint8",
    rounding: PoolRounding = "half_even",
) -> IntegerArray:
    """Return clamp(rint(float32(sum) * float32(multiplier / count)) + zero_point) over each window.

    Parameters
    ----------
    x
        8-bit (batch, height, width, channels).
    kernel, window
        Taps of rows and columns, and where they lie.
    out_shape
        (rows, columns) of the result; a window may reach beyond the padding (ceil mode).
    count_include_pad
        Whether every tap counts, those outside of `x` as real 0; otherwise only the pixels of `x` count.
    multiplier, input_zero_point
        float32 in_scale / out_scale, and the zero point of `x`: sum is over x - input_zero_point.
    zero_point, qmin, qmax, dtype
        Of the result.
    rounding
        "half_even": the formula above. "half_away": sum / count in exact arithmetic, a tie away from 0; `multiplier` must be 1.
        "half_even_stored": rint(float32(sum) * float32(multiplier / count) + zero_point), a tie to an even result.
        "shift_...": sum * multiplier / count in exact arithmetic, its ties as the name says; `multiplier` is a power of two.

    Returns
    -------
    array
        `dtype` (batch, *out_shape, channels). A window that holds no pixel is real 0.

    Notes
    -----
    The quotient multiplier / count is rounded to float32, for each count on its own. LiteRT averages pixels with "half_away" over
    the integers as they are stored (AVERAGE_POOL_2D; both zero points 0 here, whatever the tensors' are), and takes means with
    "half_even_stored" (MEAN).
    """
    if rounding == "half_away" and multiplier != 1:
        raise ValueError(f"half_away takes a multiplier of 1, got {multiplier}")
    out = np.empty((x.shape[0], *out_shape, x.shape[3]), dtype)
    for row, column, taps in _windows(x, kernel, window, out_shape):
        count = kernel[0] * kernel[1] if count_include_pad else max(taps.shape[1] * taps.shape[2], 1)
        acc = (taps.astype(np.int32) - np.int32(input_zero_point)).sum(axis=(1, 2), dtype=np.int32)
        if rounding == "half_away":
            mean = np.sign(acc) * ((2 * np.abs(acc) + count) // (2 * count))
            out[:, row, column] = clamp(mean + zero_point, qmin, qmax, dtype)
            continue
        if rounding in SHIFTS:
            shifted = acc.astype(np.int64) * math.ceil(multiplier), count * math.ceil(1 / multiplier)
            out[:, row, column] = clamp(rounded_quotient(*shifted, SHIFTS[rounding]) + zero_point, qmin, qmax, dtype)
            continue
        quotient, stored_even = np.float32(multiplier) / np.float32(count), rounding == "half_even_stored"
        out[:, row, column] = requantize(acc, quotient, zero_point, qmin, qmax, dtype, stored_even=stored_even)
    return out


def float_avg_pool2d(
    x: IntegerArray,
    parameters: FloatMeanParameters,
    *,
    kernel: tuple[int, int],
    window: Window = UNIT_WINDOW,
    out_shape: tuple[int, int],
    count_include_pad: bool = False,
    qmin: int | None = None,
    qmax: int | None = None,
    dtype: str = "uint8",
) -> IntegerArray:
    """Return the average over each window in float32, as ONNX Runtime's QLinearAveragePool forms it.

    Parameters
    ----------
    x, kernel, window, out_shape, count_include_pad, qmin, qmax, dtype
        As `avg_pool2d` takes them.
    parameters
        Scales and zero points; the taps of a window are summed row by row. A window that holds no pixel is real 0.
    """
    out = np.empty((x.shape[0], *out_shape, x.shape[3]), dtype)
    for row, column, taps in _windows(x, kernel, window, out_shape):
        count = kernel[0] * kernel[1] if count_include_pad else max(taps.shape[1] * taps.shape[2], 1)
        flat = taps.reshape(taps.shape[0], -1, taps.shape[3])
        out[:, row, column] = float_mean(flat, parameters, axis=1, count=count, qmin=qmin, qmax=qmax, dtype=dtype)
    return out


def global_avg_pool2d(
    x: IntegerArray,
    *,
    multiplier: float,
    input_zero_point: int,
    zero_point: int,
    qmin: int | None = None,
    qmax: int | None = None,
    dtype: str = "uint8",
) -> IntegerArray:
    """Return the mean over rows and columns: `avg_pool2d` with one window over the whole image.

    Parameters
    ----------
    x
        8-bit (batch, height, width, channels).
    multiplier, input_zero_point, zero_point, qmin, qmax, dtype
        As `avg_pool2d` takes them.

    Returns
    -------
    array
        `dtype` (batch, 1, 1, channels).
    """
    return avg_pool2d(
        x,
        kernel=(x.shape[1], x.shape[2]),
        out_shape=(1, 1),
        multiplier=multiplier,
        input_zero_point=input_zero_point,
        zero_point=zero_point,
        qmin=qmin,
        qmax=qmax,
        dtype=dtype,
    )


def max_pool2d(
    x: IntegerArray,
    *,
    kernel: tuple[int, int],
    window: Window = UNIT_WINDOW,
    out_shape: tuple[int, int],
    qmin: int | None = None,
    qmax: int | None = None,
) -> IntegerArray:
    """Return the maximum over the pixels of each window, clamped to [qmin; qmax]; scale and zero point stay as they are.

    Parameters
    ----------
    x
        8-bit (batch, height, width, channels).
    kernel, window, out_shape
        As `avg_pool2d` takes them. Padding never counts.
    qmin, qmax
        Clamp of the result, None being the bound of the dtype of `x`.

    Returns
    -------
    array
        Of the dtype of `x`, (batch, *out_shape, channels). A window that holds no pixel gives qmin.
    """
    qmin, qmax = clamp_bounds(qmin, qmax, str(x.dtype))
    out = np.full((x.shape[0], *out_shape, x.shape[3]), qmin, x.dtype)
    for row, column, taps in _windows(x, kernel, window, out_shape):
        if taps.shape[1] and taps.shape[2]:
            out[:, row, column] = np.clip(taps.max(axis=(1, 2)), qmin, qmax)
    return out


def _windows(
    x: IntegerArray, kernel: tuple[int, int], window: Window, out_shape: tuple[int, int]
) -> Iterator[tuple[int, int, IntegerArray]]:
    """Yield (row, column, pixels of x in that window) of every output pixel."""
    (down, right), (top, left, *_), (row_step, column_step) = window.strides, window.padding, window.dilation
    for row in range(out_shape[0]):
        rows = [r for i in range(kernel[0]) if 0 <= (r := row * down - top + i * row_step) < x.shape[1]]
        for column in range(out_shape[1]):
            start = column * right - left
            columns = [c for j in range(kernel[1]) if 0 <= (c := start + j * column_step) < x.shape[2]]
            yield row, column, x[:, rows][:, :, columns]
