"""Oracles of convolution and matrix multiplication of int16 activations with 8-bit weights. No TVM here.

Accumulators have 64 bits; they become int16 by a fixed-point factor (TFLite's 16x8 models) or a float32 one (QDQ models).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .conv2d import IntegerArray, conv2d_total, matmul_total
from .fixed_multiplier import FixedFactor
from .requantize import requantize

Int16Multiplier = FixedFactor | npt.NDArray[np.float32]
"""A fixed-point factor, or float32 in_scale * weight_scale / out_scale: a number or one for each output channel."""


def requantize_int16(
    acc: npt.NDArray[np.int64], multiplier: Int16Multiplier, zero_point: int, qmin: int, qmax: int
) -> npt.NDArray[np.int16]:
    """Return int64 accumulators as int16: clamp(scaled + zero_point, qmin, qmax).

    Parameters
    ----------
    acc
        Channels last. With a fixed-point factor |acc| is `FixedFactor.most` at most.
    multiplier
        Scales: `FixedFactor.apply`, or rint(float32(acc) * multiplier) as `requantize` has it.
    zero_point, qmin, qmax
        Of the result, qmin <= qmax, all within [-32768; 32767].
    """
    if isinstance(multiplier, FixedFactor):
        return np.clip(multiplier.apply(acc) + zero_point, qmin, qmax).astype(np.int16)
    return requantize(acc, multiplier, zero_point, qmin, qmax, "int16").astype(np.int16)


def conv2d_int16(
    x: npt.NDArray[np.int16],
    w: IntegerArray,
    *,
    x_zero_point: int = 0,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.int64] | None = None,
    multiplier: Int16Multiplier,
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


def matmul_int16(
    x: npt.NDArray[np.int16],
    w: IntegerArray,
    *,
    x_zero_point: int = 0,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.int64] | None = None,
    multiplier: Int16Multiplier,
    zero_point: int = 0,
    qmin: int = -32768,
    qmax: int = 32767,
) -> npt.NDArray[np.int16]:
    """Return the quantized product of int16 (..., in_features) by 8-bit (in_features, out_features); see `conv2d_int16`."""
    acc = matmul_total(x, w, x_zero_point=x_zero_point, w_zero_point=w_zero_point, bias=bias)
    return requantize_int16(acc, multiplier, zero_point, qmin, qmax)
