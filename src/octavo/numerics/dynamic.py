"""Oracles of quantization at run time: scale and zero point from the range of the very values, 0 included. No TVM here.

Three styles. "onnx" is DynamicQuantizeLinear. "litert" is what XNNPACK does in front of kernels with int8 weights. `TorchStyle`
is PyTorch's choose_qparams. Integers that are int8 there are uint8 here, relabelled by 128.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .quant_params import INTEGER_RANGE

_F = np.float32


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchStyle:
    """What PyTorch's choose_qparams and choose_qparams_symmetric compute (torch.ao.quantization.utils.determine_qparams).

    Parameters
    ----------
    dtype
        Of PyTorch's integers.
    qmin, qmax
        Their range, inclusive.
    eps
        The smallest scale.
    is_symmetric
        Whether the range is widened to [-high; high] and the zero point is the middle of the dtype.
    by_row
        Whether each row of a matrix has parameters of its own (torchao's choose_qparams_affine), or all values share them.
    """

    dtype: Literal["int8", "uint8"]
    qmin: int
    qmax: int
    eps: float
    is_symmetric: bool = False
    by_row: bool = False

    def __post_init__(self) -> None:
        """Check the range, and that every scale is positive."""
        low, high = INTEGER_RANGE[self.dtype]
        assert low <= self.qmin < self.qmax <= high
        assert 0 < _F(self.eps) < np.inf

    @property
    def bounds(self) -> tuple[int, int]:
        """The range of the uint8 integers."""
        relabel = 128 if self.dtype == "int8" else 0
        return self.qmin + relabel, self.qmax + relabel


DynamicStyle = Literal["litert", "onnx"] | TorchStyle

PER_ROW = TorchStyle(dtype="uint8", qmin=0, qmax=255, eps=float(np.finfo(np.float32).tiny), by_row=True)
"""How `quantize` has activations quantized per row when run: what torchao's asymmetric activations are, in uint8."""


def is_by_row(style: DynamicStyle) -> bool:
    """Return whether each index of the first axis has parameters of its own."""
    return style.by_row if isinstance(style, TorchStyle) else style == "litert"


def style_name(style: DynamicStyle) -> str:
    """Return "litert", "onnx" or "torch"."""
    return "torch" if isinstance(style, TorchStyle) else style


def style_bounds(style: DynamicStyle) -> tuple[int, int]:
    """Return the range of the uint8 integers."""
    return style.bounds if isinstance(style, TorchStyle) else (0, 255)


def dynamic_parameters(x: npt.NDArray[np.float32], style: DynamicStyle) -> npt.NDArray[np.float32]:
    """Return scale and zero point for each row of float32 values (rows, values), as float32 (rows, 2).

    Zero points are integers in [0; 255]. A row of zeros alone has scale 1; in PyTorch's style the smallest one. One that holds
    NaN or infinity, or whose range is beyond float32, has scale NaN and zero point 0: what a product gives of it is NaN.

    Notes
    -----
    "litert" takes the end of the range whose zero point errs less, and all of it in float32; the others take the lower end.
    """
    low, high = np.minimum(x.min(axis=1), _F(0)), np.maximum(x.max(axis=1), _F(0))
    found = np.empty((len(x), 2), _F)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found[:, 0], found[:, 1] = _parameters(low, high, style)
    found[~np.isfinite(found[:, 0])] = np.nan, 0
    return found


def dynamic_quantize(
    x: npt.NDArray[np.float32], parameters: npt.NDArray[np.float32], style: DynamicStyle
) -> npt.NDArray[np.uint8]:
    """Return clamp(rint(x / scale) + zero_point) of rows of values; all but "onnx" multiply by float32 1 / scale instead.

    Of a row whose scale is NaN all are qmin.
    """
    return (_steps(x, parameters, style) + parameters[:, 1:]).astype(np.uint8)


def _steps(x: npt.NDArray[np.float32], parameters: npt.NDArray[np.float32], style: DynamicStyle) -> npt.NDArray[np.float32]:
    """Return the integers less their zero points, as float32 has them."""
    scale, zero_point = parameters[:, :1], parameters[:, 1:]
    qmin, qmax = (_F(bound) for bound in style_bounds(style))
    is_unknown = np.isnan(scale)
    with np.errstate(invalid="ignore"):
        steps = x / scale if style == "onnx" else x * (_F(1) / scale)
    if is_unknown.any():
        steps = np.where(is_unknown, qmin - zero_point, steps)
    np.rint(steps, out=steps)
    return np.clip(steps, qmin - zero_point, qmax - zero_point, out=steps)


def centered_rows(
    x: npt.NDArray[np.float32], axis: int | None = -1, style: DynamicStyle = PER_ROW
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Return the integers of a tensor less their zero points, and scales that keep `axis` with size 1: a row lies along that.

    A row along None is a sample: all that an index of the first axis has.
    """
    steps, scale = row_steps(x, axis, style)
    return steps.astype(np.int32), scale


def row_steps(
    x: npt.NDArray[np.float32], axis: int | None = -1, style: DynamicStyle = PER_ROW
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return what `centered_rows` does, the integers as float32 has them: most of what they take is to convert them."""
    if axis is None:
        steps, scale = row_steps(x.reshape(len(x), -1), -1, style)
        return steps.reshape(x.shape), scale.reshape(-1, *[1] * (x.ndim - 1))
    moved = x.swapaxes(axis, -1)  # in a tenth of the time that `moveaxis` takes
    rows = moved.reshape(-1, moved.shape[-1])
    parameters = dynamic_parameters(rows, style)
    steps, scale = _steps(rows, parameters, style), parameters[:, 0].reshape(*moved.shape[:-1], 1)
    return steps.reshape(moved.shape).swapaxes(axis, -1), scale.swapaxes(axis, -1)


def _parameters(
    low: npt.NDArray[np.float32], high: npt.NDArray[np.float32], style: DynamicStyle
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    span = high - low
    if isinstance(style, TorchStyle):
        return _torch_parameters(low, high, style)
    if style == "onnx":
        scale = np.where(span == 0, _F(1), span / _F(255)).astype(_F)
        scale = np.where(scale == 0, _F(1), scale)
        return scale, np.rint(np.clip((_F(0) - low) / scale, _F(0), _F(255)))  # 0 - low: no negative zero
    factor = np.where(span == 0, _F(1), _F(255) / span).astype(_F)
    below, above = low * factor, high * factor
    zero = np.where((_F(-128) + below) + (_F(127) + above) > 0, _F(-128) - below, _F(127) - above)
    return _F(1) / factor, np.rint(np.clip(zero, _F(-128), _F(127))) + _F(128)


def _torch_parameters(
    low: npt.NDArray[np.float32], high: npt.NDArray[np.float32], style: TorchStyle
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    qmin, qmax = (_F(bound) for bound in style.bounds)
    if style.is_symmetric:
        scale = np.maximum(np.maximum(-low, high) / ((qmax - qmin) / _F(2)), _F(style.eps))
        return scale, np.full_like(scale, 128)
    scale = np.maximum((high - low) / (qmax - qmin), _F(style.eps))
    return scale, np.clip(qmin - np.rint(low / scale), qmin, qmax)
