"""Oracles of convolution in integers, in plain NumPy, of 8-bit and of 16-bit activations.

A kernel equals these bit for bit. They are written to be obviously right, not fast: no TVM, no blocking, no packing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..rounding.requantize import Multiplier, requantize, requantize_int16

IntegerArray = npt.NDArray[np.integer]


def centered(values: IntegerArray, zero_point: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return values - zero_point as float64: sums of products of such integers are exact up to 2**53."""
    return values.astype(np.float64) - np.asarray(zero_point, np.float64)


def conv2d_total(
    x: IntegerArray,
    w: IntegerArray,
    *,
    x_zero_point: int,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.integer] | None = None,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> npt.NDArray[np.int64]:
    """Return the exact sums of `conv2d_accumulate`, as int64; activations and bias may have any integer dtype."""
    kernel_h, kernel_w, group_in, out_channels = w.shape
    batch, _, _, in_channels = x.shape
    if in_channels != group_in * groups or out_channels % groups:
        raise ValueError(f"{groups} groups of {group_in} inputs do not fit x {x.shape} and w {w.shape}")
    top, left, bottom, right = padding
    padded = np.pad(centered(x, x_zero_point), ((0, 0), (top, bottom), (left, right), (0, 0)))
    weights = centered(w, w_zero_point)
    out_h = (padded.shape[1] - dilation[0] * (kernel_h - 1) - 1) // strides[0] + 1
    out_w = (padded.shape[2] - dilation[1] * (kernel_w - 1) - 1) // strides[1] + 1
    group_out = out_channels // groups
    acc = np.zeros((groups, batch * out_h * out_w, group_out), np.float64)
    for i in range(kernel_h):
        for j in range(kernel_w):
            rows = slice(i * dilation[0], i * dilation[0] + (out_h - 1) * strides[0] + 1, strides[0])
            columns = slice(j * dilation[1], j * dilation[1] + (out_w - 1) * strides[1] + 1, strides[1])
            taps = padded[:, rows, columns, :].reshape(-1, groups, group_in).transpose(1, 0, 2)
            acc += taps @ weights[i, j].reshape(group_in, groups, group_out).transpose(1, 0, 2)
    total = acc.transpose(1, 0, 2).reshape(batch, out_h, out_w, out_channels).astype(np.int64)
    if bias is not None:
        total = total + bias.astype(np.int64)
    return total


def conv2d_accumulate(
    x: IntegerArray,
    w: IntegerArray,
    *,
    x_zero_point: int,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.int32] | None = None,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> npt.NDArray[np.int32]:
    """Return sum((x - x_zero_point) * (w - w_zero_point)) + bias, the int32 accumulators of a convolution.

    Parameters
    ----------
    x
        uint8 or int8 activations, NHWC, e.g. (1, 224, 224, 3).
    w
        int8 or uint8 weights, HWIO with the inputs of one group, e.g. (3, 3, 3, 32); (3, 3, 1, 32) with groups=32 is depthwise.
    x_zero_point, w_zero_point
        Zero points; that of the weights is a number or (out_channels,).
    bias
        int32 (out_channels,), or None for zeros.
    strides, dilation
        Of rows and columns.
    padding
        (top, left, bottom, right), filled with `x_zero_point`, that is with real 0.
    groups
        Number of groups; input and output channels are multiples of it, in contiguous runs.

    Returns
    -------
    array
        int32 (batch, out_height, out_width, out_channels). A sum beyond int32 wraps; see `bounds` for the proof that none is.
    """
    total = conv2d_total(
        x,
        w,
        x_zero_point=x_zero_point,
        w_zero_point=w_zero_point,
        bias=bias,
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
    return total.astype(np.int32)


def conv2d(
    x: IntegerArray,
    w: IntegerArray,
    *,
    x_zero_point: int,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.int32] | None = None,
    multiplier: npt.ArrayLike,
    zero_point: int,
    qmin: int = 0,
    qmax: int = 255,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    out_dtype: str = "uint8",
    real_bias: npt.ArrayLike | None = None,
) -> IntegerArray:
    """Return the quantized convolution: `requantize` of `conv2d_accumulate`.

    Parameters
    ----------
    x, w, x_zero_point, w_zero_point, bias, strides, padding, dilation, groups
        As `conv2d_accumulate` takes them.
    multiplier, zero_point, qmin, qmax, out_dtype, real_bias
        As `requantize` takes them; `multiplier` and `real_bias` are numbers or (out_channels,).

    Returns
    -------
    array
        `out_dtype` (batch, out_height, out_width, out_channels).
    """
    acc = conv2d_accumulate(
        x,
        w,
        x_zero_point=x_zero_point,
        w_zero_point=w_zero_point,
        bias=bias,
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
    return requantize(acc, multiplier, zero_point, qmin, qmax, out_dtype, real_bias=real_bias)


def conv2d_transpose_accumulate(
    x: IntegerArray,
    w: IntegerArray,
    *,
    x_zero_point: int,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.int32] | None = None,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    output_padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> npt.NDArray[np.int32]:
    """Return the int32 accumulators of a transposed convolution: each pixel of x, times the kernel, is added to the result.

    Parameters
    ----------
    x, w, x_zero_point, w_zero_point, bias, strides, dilation, groups
        As in `conv2d_accumulate`: w is HWIO with the inputs of one group and the outputs of all. Pixel i of x and tap k meet at
        i * stride + k * dilation - padding.
    padding
        (top, left, bottom, right): rows and columns taken off the sums.
    output_padding
        Rows and columns, at the bottom and on the right, that are taken off less or that no tap reaches.

    Returns
    -------
    array
        int32 (batch, out_height, out_width, out_channels); a sum beyond int32 wraps.
    """
    kernel_h, kernel_w, group_in, out_channels = w.shape
    batch, height, width, in_channels = x.shape
    if in_channels != group_in * groups or out_channels % groups:
        raise ValueError(f"{groups} groups of {group_in} inputs do not fit x {x.shape} and w {w.shape}")
    pixels = centered(x, x_zero_point).reshape(batch, height, width, groups, 1, group_in)
    taps = centered(w, w_zero_point).reshape(kernel_h, kernel_w, group_in, groups, -1).transpose(0, 1, 3, 2, 4)
    spans = [(size - 1) * stride + 1 for size, stride in zip((height, width), strides, strict=True)]
    reach = [(taken - 1) * apart for taken, apart in zip((kernel_h, kernel_w), dilation, strict=True)]
    whole = [span + more + extra for span, more, extra in zip(spans, reach, output_padding, strict=True)]
    total = np.zeros((batch, *whole, out_channels), np.float64)
    for i in range(kernel_h):
        for j in range(kernel_w):
            rows = slice(i * dilation[0], i * dilation[0] + spans[0], strides[0])
            columns = slice(j * dilation[1], j * dilation[1] + spans[1], strides[1])
            total[:, rows, columns] += (pixels @ taps[i, j]).reshape(batch, height, width, out_channels)
    top, left, bottom, right = padding
    total = total[:, top : whole[0] - bottom, left : whole[1] - right].astype(np.int64)
    return (total if bias is None else total + bias.astype(np.int64)).astype(np.int32)


def conv2d_int16(
    x: npt.NDArray[np.int16],
    w: IntegerArray,
    *,
    x_zero_point: int = 0,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.int64] | None = None,
    multiplier: Multiplier,
    zero_point: int = 0,
    qmin: int = -32768,
    qmax: int = 32767,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> npt.NDArray[np.int16]:
    """Return the quantized convolution of int16 NHWC by 8-bit HWIO weights.

    Parameters
    ----------
    x, w, x_zero_point, w_zero_point, strides, padding, dilation, groups
        As `conv2d_accumulate` takes them, with int16 activations.
    bias
        int64 (out_channels,), or None for zeros.
    multiplier, zero_point, qmin, qmax
        As `requantize_int16` takes them.

    Returns
    -------
    array
        int16 (batch, out_height, out_width, out_channels). The sums are exact.
    """
    acc = conv2d_total(
        x,
        w,
        x_zero_point=x_zero_point,
        w_zero_point=w_zero_point,
        bias=bias,
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
    return requantize_int16(acc, multiplier, zero_point, qmin, qmax)
