"""Oracles of quantization at run time: scale and zero point from the range of the very values, 0 included. No TVM here.

Two styles. "onnx" is DynamicQuantizeLinear. "litert" is what XNNPACK does in front of kernels with int8 weights; its integers are
int8 there and uint8 here, relabelled by 128.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

DynamicStyle = Literal["litert", "onnx"]
_F = np.float32


def dynamic_parameters(x: npt.NDArray[np.float32], style: DynamicStyle) -> npt.NDArray[np.float32]:
    """Return scale and zero point for each row of finite float32 values (rows, values), as float32 (rows, 2).

    Zero points are integers in [0; 255]. A row of zeros alone has scale 1.

    Notes
    -----
    "litert" takes the end of the range whose zero point errs less, and all of it in float32; "onnx" takes the lower end.
    """
    low, high = np.minimum(x.min(axis=1), _F(0)), np.maximum(x.max(axis=1), _F(0))
    span = high - low
    if style == "onnx":
        scale = np.where(span == 0, _F(1), span / _F(255)).astype(_F)
        scale = np.where(scale == 0, _F(1), scale)
        zero_point = np.rint(np.clip(-low / scale, _F(0), _F(255)))
    else:
        with np.errstate(divide="ignore"):
            factor = np.where(span == 0, _F(1), _F(255) / span).astype(_F)
        below, above = low * factor, high * factor
        zero = np.where((_F(-128) + below) + (_F(127) + above) > 0, _F(-128) - below, _F(127) - above)
        zero_point = np.rint(np.clip(zero, _F(-128), _F(127))) + _F(128)
        scale = _F(1) / factor
    return np.stack([scale, zero_point], axis=1).astype(_F)


def dynamic_quantize(
    x: npt.NDArray[np.float32], parameters: npt.NDArray[np.float32], style: DynamicStyle
) -> npt.NDArray[np.uint8]:
    """Return saturate(rint(x / scale) + zero_point) of rows of values; "litert" multiplies by float32 1 / scale instead."""
    scale, zero_point = parameters[:, :1], parameters[:, 1:]
    steps = x / scale if style == "onnx" else x * (_F(1) / scale)
    return (np.clip(np.rint(steps), -zero_point, _F(255) - zero_point) + zero_point).astype(np.uint8)
