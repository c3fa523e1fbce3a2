"""Oracle of reductions of float32 values over an axis. No TVM here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LANES = 16
ROW_VECTORS = 4
"""Vectors of a row that are summed apart, so that sums don't wait for each other."""


def float_reduce(x: npt.NDArray[np.float32], kind: str) -> npt.NDArray[np.float32 | np.int64]:
    """Return "sum", "mean", "max", "min", or the first places "argmax", "argmin" over axis 1 of float32 [outer, count, inner].

    Sums are rounded to float32 in turn, in the order of the axis; those of one column (inner 1) vector by vector of 16, four sums
    of vectors in turn, which are then added in pairs, and their halves, until one number is left.
    """
    if kind in ("max", "min", "argmax", "argmin"):
        return getattr(np, kind)(x, axis=1)
    total = _sum_of_rows(x[:, :, 0])[:, None] if x.shape[2] == 1 else _sum_in_order(x)
    return (total / np.float32(x.shape[1])).astype(np.float32) if kind == "mean" else total


def _sum_in_order(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    total = np.zeros((x.shape[0], x.shape[2]), np.float32)
    for index in range(x.shape[1]):
        total = total + x[:, index]
    return total


def _sum_of_rows(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    full, rest = divmod(x.shape[1], LANES)
    width = min(ROW_VECTORS, max(1, full))
    vectors = np.zeros((x.shape[0], -(-max(1, full) // width) * width + width, LANES), np.float32)
    vectors[:, :full] = x[:, : full * LANES].reshape(len(x), full, LANES)
    vectors[:, -width, :rest] = x[:, full * LANES :]
    totals = _sum_in_order(vectors.reshape(len(x), -1, width * LANES)).reshape(-1, width, LANES)
    while totals.shape[1] > 1:
        odd = totals[:, -1:] if totals.shape[1] % 2 else totals[:, :0]
        pairs = totals.shape[1] // 2 * 2
        totals = np.concatenate([totals[:, 0:pairs:2] + totals[:, 1:pairs:2], odd], axis=1)
    lanes = totals[:, 0]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]
