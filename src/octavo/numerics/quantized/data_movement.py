"""Oracles of ops that only move quantized values: concatenation, and gathering by an index for each axis. No TVM here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..affine import requantize_tensor

IntegerArray = npt.NDArray[np.integer]


def concat(
    inputs: Sequence[IntegerArray],
    *,
    axis: int = -1,
    multipliers: Sequence[float],
    input_zero_points: Sequence[int],
    zero_point: int,
    qmin: int = 0,
    qmax: int = 255,
    dtype: str = "uint8",
) -> IntegerArray:
    """Return the inputs joined along `axis`, each requantized to the output's scale and zero point.

    Parameters
    ----------
    inputs
        8-bit tensors of one shape but for `axis`.
    axis
        Where they are joined.
    multipliers, input_zero_points
        float32 in_scale / out_scale and zero point of each input.
    zero_point, qmin, qmax, dtype
        Of the result.

    Returns
    -------
    array
        Of `dtype`. An input of multiplier 1 and the output's zero point is only clamped.
    """
    parts = [
        requantize_tensor(
            q, input_zero_point=from_zero_point, multiplier=multiplier, zero_point=zero_point, qmin=qmin, qmax=qmax, dtype=dtype
        )
        for q, multiplier, from_zero_point in zip(inputs, multipliers, input_zero_points, strict=True)
    ]
    return np.concatenate(parts, axis=axis)


def gather(x: npt.NDArray[Any], maps: Sequence[Sequence[int]], fill: npt.ArrayLike = 0) -> npt.NDArray[Any]:
    """Return y[i, j, ...] = x[maps[0][i], maps[1][j], ...]; an index of -1 gives `fill`.

    `fill` is one number, or an array along the last axis, which then is not padded.
    """
    indices = [np.asarray(each, np.int64) for each in maps]
    y = x[np.ix_(*(np.maximum(each, 0) for each in indices))].copy()
    fills = np.broadcast_to(np.asarray(fill, x.dtype), y.shape)
    for axis, each in enumerate(indices):
        padding = (slice(None),) * axis + (each < 0,)
        y[padding] = fills[padding]
    return y
