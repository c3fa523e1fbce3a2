"""Oracle of layer normalization of quantized rows: integer sums, float32 from there on. No TVM here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .requantize import requantize

LAYER_NORM_MAX_COLUMNS = 1 << 15
"""Longest row: the sum of its squares, each up to 255 * 255, stays below 2**31, and a distance below 2**24."""


def layer_norm(
    q: npt.NDArray[np.integer],
    *,
    scale: float,
    epsilon: float,
    gamma: npt.NDArray[np.float32],
    beta: npt.NDArray[np.float32],
    out_scale: float,
    zero_point: int,
    qmin: int = 0,
    qmax: int = 255,
) -> npt.NDArray[np.integer]:
    """Return the rows of q, over the last axis, normalized: (x - mean) / sqrt(variance + epsilon) * gamma + beta, quantized.

    Parameters
    ----------
    q
        uint8, rows of n values, at most `LAYER_NORM_MAX_COLUMNS`. Their zero point cancels.
    scale
        Of q.
    gamma, beta
        float32 (n,).
    out_scale, zero_point, qmin, qmax
        Of the result.

    Notes
    -----
    With n times the distance from the mean, d = n * q - sum(q), and n * n times the variance, v = n * sum(q * q) - sum(q) ** 2,
    both exact, the result is rint(fma(d, m, beta / out_scale)) with m = 1 / (sqrt(v / n**2 + epsilon / scale**2) * n) * (gamma /
    out_scale); each operation rounds to float32 once.
    """
    columns = q.shape[-1]
    x = q.astype(np.int64)
    total, squares = x.sum(axis=-1, keepdims=True), (x * x).sum(axis=-1, keepdims=True)
    variance = (columns * squares - total * total).astype(np.float32) / np.float32(columns * columns)
    root = np.sqrt(variance + in_steps(epsilon, scale))
    inverse = np.float32(1) / (root * np.float32(columns))
    factors, addends = (values / np.float32(out_scale) for values in (gamma, beta))
    with np.errstate(invalid="ignore"):
        return requantize((columns * x - total).astype(np.int32), inverse * factors, zero_point, qmin, qmax, real_bias=addends)


def in_steps(epsilon: float, scale: float) -> np.float32:
    """Return epsilon in squared steps of the input, never 0: rows of equal values then have a result, beta."""
    with np.errstate(over="ignore"):
        steps = np.float32(np.float64(epsilon) / np.float64(np.float32(scale)) ** 2)
    return np.clip(steps, np.float32(1e-30), np.finfo(np.float32).max)
