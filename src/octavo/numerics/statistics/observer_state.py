"""What an observer writes: the statistics of one tensor in two buffers that last from run to run. No code is emitted here.

`ranges`, float32 (2 C): the least value of each channel, then the greatest; NaN and infinities are left out. It starts as
(+inf, -inf).

`counts`, int32 (COUNTS_SIZE,), starts as zeros:

    [0]                         size - p, where p is the first position that ever held NaN or infinity; 0 where none did
    [table(t) + code]           values of the code (see numerics/statistics/histogram.py) that table t counted

A histogram is the sum of its tables: neighbouring values use different ones, so that a value that repeats does not wait for its
own last count to reach memory. Counts are to be read as uint32, and moved elsewhere before any reaches 2^32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .histogram import CODES

HEADER = 16
"""int32 numbers before the first table: one cache line."""
TABLES = 2
_TABLE_STRIDE = CODES + 272
"""Not a power of two: counts of one code must not lie at the same place of two pages, or processors take them for the same."""
COUNTS_SIZE = HEADER + TABLES * _TABLE_STRIDE


def table(index: int) -> int:
    """Return where a table of counts starts."""
    return HEADER + index * _TABLE_STRIDE


def empty_ranges(channels: int) -> npt.NDArray[np.float32]:
    """Return the ranges of no values."""
    return np.repeat(np.array([np.inf, -np.inf], np.float32), channels)


def total_counts(counts: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return the counts by code, int64 (CODES,): the sum of the tables."""
    total = np.zeros(CODES, np.int64)
    for index in range(TABLES):
        total += counts[table(index) : table(index) + CODES].view(np.uint32)
    return total


def first_non_finite(counts: npt.NDArray[np.int32], size: int) -> int | None:
    """Return the first position that held NaN or infinity, or None."""
    return size - int(counts[0]) if counts[0] else None
