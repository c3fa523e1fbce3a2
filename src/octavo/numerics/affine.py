"""Oracles of the affine map between real numbers and integers: quantize, dequantize, requantize, relabel.

A kernel or a graph pass that maps real numbers to integers cites these definitions. No TVM here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .quant_params import PerAxis, PerBlock, QuantParams
from .rounding.requantize import requantize

_CONTAINER = {"int4": "int8", "uint4": "uint8"}
"""NumPy has no 4-bit dtype: such values are held one to a byte."""


TieRounding = Literal["half_even", "half_up", "half_away"]
"""Where a tie goes: to the even neighbour, towards plus infinity, away from 0."""


def _half_up(steps: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    return np.floor(steps.astype(np.float64) + 0.5)


_ROUND: dict[TieRounding, Callable[[npt.NDArray[np.floating[Any]]], npt.NDArray[np.floating[Any]]]] = {
    "half_even": np.rint,
    "half_up": _half_up,
    "half_away": lambda steps: np.copysign(_half_up(np.abs(steps)), steps),
}


def quantize(
    x: npt.ArrayLike, params: QuantParams, rounding: TieRounding = "half_even", *, exact: bool = False
) -> npt.NDArray[np.integer]:
    """Return clamp(round(x / scale) + zero_point, qmin, qmax), half to even unless `rounding` says otherwise.

    Parameters
    ----------
    x
        Real values of any shape; computed in float32, with `exact` in float64.
    params
        Per tensor, per axis with as many scales as `x` has indices there, or per block with as many as it has whole blocks.

    Returns
    -------
    array
        Of `params.dtype` (4-bit dtypes one to a byte), shaped as `x`. Infinities saturate; NaN becomes qmin.

    Raises
    ------
    ValueError
        If the axis or the number of scales does not fit `x`.

    Notes
    -----
    The definition is ONNX QuantizeLinear's: a true float32 division, not a product with the reciprocal.
    """
    dtype = np.float64 if exact else np.float32
    values = np.asarray(x, dtype)
    scale, zero_point = _aligned(params, values.shape)
    with np.errstate(over="ignore", invalid="ignore"):  # x / a tiny scale may be infinite, which saturates
        steps = np.asarray(_ROUND[rounding](np.divide(values, scale, dtype=dtype)))
        # Of 16 bits or fewer every bound is exact in float32, and so is the sum with the zero point; of int32 in float64.
        steps = steps.astype(np.result_type(steps, np.float64 if params.dtype == "int32" else np.float32), copy=False)
        low, high = (np.asarray(end - zero_point.astype(np.float64), steps.dtype) for end in (params.qmin, params.qmax))
        np.fmax(steps, low, out=steps)  # which is `low` for NaN
        np.minimum(steps, high, out=steps)
        np.add(steps, zero_point.astype(steps.dtype), out=steps)
    return steps[()].astype(_CONTAINER.get(params.dtype, params.dtype))


def dequantize(q: npt.NDArray[np.integer], params: QuantParams) -> npt.NDArray[np.float32]:
    """Return float32(q - zero_point) * scale.

    Parameters
    ----------
    q
        Integers of `params.dtype`.
    params
        Per tensor, or per axis with as many scales as `q` has indices there.

    Returns
    -------
    array
        float32, shaped as `q`.

    Raises
    ------
    ValueError
        If the axis or the number of scales does not fit `q`.
    """
    values = np.asarray(q)
    scale, zero_point = _aligned(params, values.shape)
    if (
        values.dtype.itemsize <= 2 and params.dtype != "int32"
    ):  # float32 holds the integers, the zero points and their differences
        centered = np.asarray(values.astype(np.float32))
        np.subtract(centered, zero_point.astype(np.float32), out=centered)
    else:
        centered = np.asarray((values.astype(np.int64) - zero_point).astype(np.float32))
    with np.errstate(over="ignore"):  # a huge scale times a large integer is infinite in float32
        return np.multiply(centered, scale, out=centered)[()]


def requantize_tensor(
    q: npt.NDArray[np.integer],
    *,
    input_zero_point: int,
    multiplier: float,
    zero_point: int,
    qmin: int = 0,
    qmax: int = 255,
    dtype: str = "uint8",
) -> npt.NDArray[np.integer]:
    """Return `q` under another scale and zero point: clamp(rint(float32(q - input_zero_point) * multiplier) + zero_point).

    Parameters
    ----------
    q
        8-bit or 16-bit integers.
    input_zero_point
        Zero point of `q`.
    multiplier
        float32 in_scale / out_scale.
    zero_point, qmin, qmax, dtype
        Of the result.

    Returns
    -------
    array
        Of `dtype`, shaped as `q`.
    """
    centered = (q.astype(np.int32) - np.int32(input_zero_point)).astype(np.int32)
    return requantize(centered, np.float32(multiplier), zero_point, qmin, qmax, dtype)


def relabel(q: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Return int8 q as uint8 q + 128, uint16 q as int16 q - 32768, or back: the same real number under a zero point moved alike.

    Raises
    ------
    ValueError
        If `q` has other than 8 or 16 bits.
    """
    twin = {"int8": "uint8", "uint8": "int8", "int16": "uint16", "uint16": "int16"}.get(str(q.dtype))
    if twin is not None:
        moved = np.iinfo(twin).min - np.iinfo(q.dtype).min
        return (q.astype(np.int32) + moved).astype(twin)
    raise ValueError(f"relabel takes int8, uint8, int16 or uint16, got {q.dtype}")


def _aligned(params: QuantParams, shape: tuple[int, ...]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Return scale and zero point shaped to broadcast over a tensor of `shape`."""
    if isinstance(params.granularity, PerBlock):
        return _spread(params.scale, params.granularity, shape), _spread(params.zero_point, params.granularity, shape)
    if not isinstance(params.granularity, PerAxis):
        return params.scale, params.zero_point
    axis = params.granularity.axis
    if not -len(shape) <= axis < len(shape) or shape[axis] != params.scale.size:
        raise ValueError(f"{params.scale.size} scales along axis {axis} do not fit a tensor of shape {shape}")
    view = [1] * len(shape)
    view[axis] = params.scale.size
    return params.scale.reshape(view), params.zero_point.reshape(view)


def _spread(values: npt.NDArray[Any], blocks: PerBlock, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the parameters of blocks for each value of a tensor of `shape`."""
    known = len(values.shape) == len(shape) and 0 <= blocks.axis < len(shape)
    found = np.repeat(values, blocks.size, axis=blocks.axis) if known else values
    if found.shape != shape:
        raise ValueError(f"{values.shape} scales of blocks of {blocks.size} along axis {blocks.axis} do not fit {shape}")
    return found
