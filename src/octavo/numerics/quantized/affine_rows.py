"""Tables whose rows are affine functions, clamped: the multipliers and biases that give every entry exactly. No TVM here.

A product and a sum by channel, as a normalization leaves them, have a table with a row for each channel; where each row is
rint(fma(x, multiplier, bias)), vectors compute what a table looks up one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..rounding.requantize import requantize

_MAX_MISS_RATE = 0.01
"""Share of the entries that a first estimate may miss: more is no affine function, and no rounding of one."""

_ULP_OFFSETS = (0, 1, -1, 2, -2, 4, -4, 8, -8)
"""Units in the last place by which multiplier and bias of a row are moved, where ties fall the other way."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AffineRows:
    """table[i, x] = clamp(rint(fma(x, multiplier[i], bias[i])) + zero_point, qmin, qmax) for all x in [0; 255].

    `multiplier` and `bias` are float32 (rows,).
    """

    multiplier: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32]
    zero_point: int
    qmin: int
    qmax: int


def affine_rows(table: npt.NDArray[np.uint8], reals: npt.NDArray[np.floating], zero_point: int) -> AffineRows | None:
    """Return the rows of a table as affine functions, None where some are not.

    Parameters
    ----------
    table
        uint8 (rows, 256).
    reals
        Its entries before rounding, without the zero point, of the same shape.
    zero_point
        Of the entries, in [0; 255].

    Notes
    -----
    Every entry is compared: what is returned gives the table, bit for bit.
    """
    low, high = int(table.min()), int(table.max())
    multiplier, bias = _estimate(table, np.asarray(reals, np.float64), low, high, zero_point)
    if not (np.isfinite(multiplier).all() and np.isfinite(bias).all()):
        return None
    wrong = _misses(table, multiplier, bias, (zero_point, low, high))
    if np.count_nonzero(wrong) > _MAX_MISS_RATE * len(table) * 256:
        return None
    for row in np.flatnonzero(wrong):
        moved = _nearby_line(table[row : row + 1], multiplier[row], bias[row], (zero_point, low, high))
        if moved is None:
            return None
        multiplier[row], bias[row] = moved
    return AffineRows(multiplier=multiplier, bias=bias, zero_point=zero_point, qmin=low, qmax=high)


def _estimate(
    table: npt.NDArray[np.uint8], reals: npt.NDArray[np.float64], low: int, high: int, zero_point: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return each row's line through the farthest two of its entries that no clamp changed."""
    interior = (table > low) & (table < high)
    first, last = np.argmax(interior, axis=1), 255 - np.argmax(interior[:, ::-1], axis=1)
    is_short = np.count_nonzero(interior, axis=1) < 2
    first, last = np.where(is_short, 0, first), np.where(is_short, 255, last)
    rows = np.arange(len(table))
    is_constant = table.min(axis=1) == table.max(axis=1)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite entries make no line, which the caller sees
        slope = (reals[rows, last] - reals[rows, first]) / (last - first)
        slope = np.where(is_constant, 0.0, slope)
        start = np.where(is_constant, table[:, 0].astype(np.float64) - zero_point, reals[rows, first] - slope * first)
        return slope.astype(np.float32), start.astype(np.float32)


def _misses(
    table: npt.NDArray[np.uint8], multiplier: npt.NDArray[np.float32], bias: npt.NDArray[np.float32], output: tuple[int, int, int]
) -> npt.NDArray[np.int64]:
    """Return how many entries of each row the line does not give."""
    every = np.broadcast_to(np.arange(256), table.shape)
    made = requantize(every, multiplier[:, None], *output, real_bias=bias[:, None])
    return np.count_nonzero(made != table, axis=1)


def _nearby_line(
    row: npt.NDArray[np.uint8], multiplier: np.float32, bias: np.float32, output: tuple[int, int, int]
) -> tuple[np.float32, np.float32] | None:
    """Return a line close by that gives the one row, None if none of those tried does."""
    steps = np.array([(m, b) for m in _ULP_OFFSETS for b in _ULP_OFFSETS], np.float32)
    multipliers = multiplier + steps[:, 0] * np.spacing(multiplier)
    biases = bias + steps[:, 1] * np.spacing(bias)
    found = np.flatnonzero(_misses(np.broadcast_to(row, (len(steps), 256)), multipliers, biases, output) == 0)
    return (multipliers[found[0]], biases[found[0]]) if len(found) else None
