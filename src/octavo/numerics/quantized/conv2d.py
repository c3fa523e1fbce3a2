"""Oracles of convolution in integers, in plain NumPy, of 8-bit and of 16-bit activations.

A kernel equals these bit for bit. They are written to be obviously right, not fast: no TVM, no blocking, no packing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..rounding.fixed_point import FixedPointMultiplier
from ..rounding.requantize import requantize
from ..window import UNIT_WINDOW, Window

IntegerArray = npt.NDArray[np.integer]


def centered(values: IntegerArray, zero_point: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return values - zero_point as float64: sums of products of such integers are exact up to 2**53."""
    return values.astype(np.float64) - np.asarray(zero_point, np.float64)


def accumulator(
    total: npt.NDArray[np.float64], bias: npt.NDArray[np.integer] | None, x: IntegerArray
) -> npt.NDArray[np.signedinteger]:
    """Return exact sums and the bias as accumulators: int64 for 16-bit activations x, else int32, where a sum beyond wraps."""
    exact = total.astype(np.int64) if bias is None else total.astype(np.int64) + bias.astype(np.int64)
    return exact if x.dtype.itemsize == 2 else exact.astype(np.int32)


def conv2d_accumulate(
    x: IntegerArray,
    w: IntegerArray,
    *,
    x_zero_point: int = 0,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.integer] | None = None,
    window: Window = UNIT_WINDOW,
    groups: int = 1,
) -> npt.NDArray[np.signedinteger]:
    """Return sum((x - x_zero_point) * (w - w_zero_point)) + bias, the accumulators of a convolution.

    Parameters
    ----------
    x
        8-bit or 16-bit activations, NHWC, e.g. (1, 224, 224, 3).
    w
        8-bit weights, HWIO with the inputs of one group, e.g. (3, 3, 3, 32); (3, 3, 1, 32) with groups=32 is depthwise.
    x_zero_point, w_zero_point
        Zero points; that of the weights is a number or (out_channels,).
    bias
        int32 or int64 (out_channels,), or None for zeros.
    window
        Strides, dilation and padding, filled with `x_zero_point`, that is with real 0.
    groups
        Number of groups; input and output channels are multiples of it, in contiguous runs.

    Returns
    -------
    array
        (batch, out_height, out_width, out_channels); int32 for 8-bit activations, where a sum beyond int32 wraps (see
        `accumulator_bounds` for the proof that none is), int64 for 16-bit ones.
    """
    group_in, out_channels = _checked_channels(x, w, groups)
    padded, weights = window.pad(centered(x, x_zero_point)), centered(w, w_zero_point)
    out_shape = window.out_shape(padded, w.shape[:2])
    pixels, group_out = x.shape[0] * out_shape[0] * out_shape[1], out_channels // groups
    acc = np.zeros((groups, pixels, group_out), np.float64)
    for i, j in np.ndindex(w.shape[:2]):
        taps = window.tap(padded, i, j, out_shape).reshape(pixels, groups, group_in).transpose(1, 0, 2)
        acc += taps @ weights[i, j].reshape(group_in, groups, group_out).transpose(1, 0, 2)
    return accumulator(acc.transpose(1, 0, 2).reshape(x.shape[0], *out_shape, out_channels), bias, x)


def conv2d(
    x: IntegerArray,
    w: IntegerArray,
    *,
    x_zero_point: int = 0,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.integer] | None = None,
    window: Window = UNIT_WINDOW,
    groups: int = 1,
    multiplier: npt.ArrayLike | FixedPointMultiplier,
    zero_point: int = 0,
    qmin: int | None = None,
    qmax: int | None = None,
    out_dtype: str = "uint8",
    real_bias: npt.ArrayLike | None = None,
) -> IntegerArray:
    """Return the quantized convolution, `out_dtype` (batch, out_height, out_width, out_channels).

    Parameters
    ----------
    x, w, x_zero_point, w_zero_point, bias, window, groups
        As `conv2d_accumulate` takes them.
    multiplier, zero_point, qmin, qmax, out_dtype, real_bias
        As `requantize` takes them; `multiplier` and `real_bias` are numbers or (out_channels,).
    """
    acc = conv2d_accumulate(x, w, x_zero_point=x_zero_point, w_zero_point=w_zero_point, bias=bias, window=window, groups=groups)
    return requantize(acc, multiplier, zero_point, qmin, qmax, out_dtype, real_bias=real_bias)


def conv2d_transpose_accumulate(
    x: IntegerArray,
    w: IntegerArray,
    *,
    x_zero_point: int = 0,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.integer] | None = None,
    window: Window = UNIT_WINDOW,
    output_padding: tuple[int, int] = (0, 0),
    groups: int = 1,
) -> npt.NDArray[np.signedinteger]:
    """Return the accumulators of a transposed convolution: each pixel of x, times the kernel, is added to the result.

    Parameters
    ----------
    x, w, x_zero_point, w_zero_point, bias, groups
        As in `conv2d_accumulate`: w is HWIO with the inputs of one group and the outputs of all.
    window
        Pixel i of x and tap k meet at i * stride + k * dilation - padding; the padding is taken off the sums.
    output_padding
        Rows and columns, at the bottom and on the right, that are taken off less or that no tap reaches.

    Returns
    -------
    array
        (batch, out_height, out_width, out_channels), of the dtype that `conv2d_accumulate` has.
    """
    group_in, out_channels = _checked_channels(x, w, groups)
    batch, height, width, _ = x.shape
    pixels = centered(x, x_zero_point).reshape(batch, height, width, groups, 1, group_in)
    taps = centered(w, w_zero_point).reshape(*w.shape[:2], group_in, groups, -1).transpose(0, 1, 3, 2, 4)
    strided = [(size - 1) * stride + 1 for size, stride in zip((height, width), window.strides, strict=True)]
    reach = [(taken - 1) * dilation for taken, dilation in zip(w.shape[:2], window.dilation, strict=True)]
    full = [span + more + extra for span, more, extra in zip(strided, reach, output_padding, strict=True)]
    total = np.zeros((batch, *full, out_channels), np.float64)
    for i, j in np.ndindex(w.shape[:2]):
        window.tap(total, i, j, (height, width))[...] += (pixels @ taps[i, j]).reshape(batch, height, width, out_channels)
    top, left, bottom, right = window.padding
    return accumulator(total[:, top : full[0] - bottom, left : full[1] - right], bias, x)


def _checked_channels(x: IntegerArray, w: IntegerArray, groups: int) -> tuple[int, int]:
    """Return the inputs of a group and all outputs; ValueError where x and w don't fit."""
    group_in, out_channels = w.shape[2:]
    if x.shape[3] != group_in * groups or out_channels % groups:
        raise ValueError(f"{groups} groups of {group_in} inputs do not fit x {x.shape} and w {w.shape}")
    return group_in, out_channels
