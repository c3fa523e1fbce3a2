"""The orthogonal matrix that spreads what single channels hold over all: a regular Hadamard matrix, for any size. NumPy only.

R is the Kronecker product of as many J/2 - 1 of order 4 as the size has factors of 4, and one 2J/m - 1 of the order m that is
left, J all ones (Wallis, Seberry and Street, Combinatorics: Room Squares, Sum-Free Sets, Hadamard Matrices, 1972, regular
Hadamard matrices). It is its own inverse, and keeps the mean of what it multiplies. Of powers of 4 all numbers are alike but for
signs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

_AT_ONCE = 2**15
"""Numbers that are multiplied at once: as many as a cache holds."""


def rotate(values: npt.NDArray[Any], axis: int, size: int, starts: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return an array times R along an axis, in float64, sums in one order on all machines.

    Parameters
    ----------
    size
        Of R: 1 or more.
    starts
        Where along the axis the parts of that size begin that are multiplied; others stay.
    """
    found = np.moveaxis(values, axis, 0).astype(np.float64)
    columns = found.reshape(len(found), -1)
    orders = []
    while size % 4 ** (len(orders) + 1) == 0:
        orders.append(4)
    orders.append(size // 4 ** len(orders))
    few = max(1, _AT_ONCE // size)
    for start, column in product(starts, range(0, columns.shape[1], few)):
        some, before = columns[start : start + size, column : column + few].copy(), 1
        for order in orders:
            parts = some.reshape(before, order, -1)
            means = parts.sum(axis=1, keepdims=True)
            means *= 2 / order
            np.subtract(means, parts, out=parts)
            before *= order
        columns[start : start + size, column : column + few] = some
    return np.ascontiguousarray(np.moveaxis(columns.reshape(found.shape), 0, axis))
