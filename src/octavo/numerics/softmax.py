"""Oracle of the quantized softmax: a table of exponentials as integers, an exact integer sum, one float32 division a row.

No TVM here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .requantize import requantize

_MAX_BITS = 22
"""Bits of exp(0) at most: products with a float32 hold them exactly."""

SOFTMAX_MAX_COLUMNS = 1 << 14
"""Longest row; exponentials then have 16 bits still, 2**-8 of the step of an 8-bit probability."""


def softmax_table(scale: float, columns: int) -> npt.NDArray[np.int32]:
    """Return rint(exp(-scale * d) * 2**bits) for d in [0; 255], the distances of a row's values from its largest.

    Parameters
    ----------
    scale
        Of the input, times the factor beta.
    columns
        Values in a row, at most `SOFTMAX_MAX_COLUMNS` (ValueError otherwise). `bits` is min(22, 30 - ceil(log2(columns))), so
        that the sum of a row stays below 2**31.
    """
    if not 1 <= columns <= SOFTMAX_MAX_COLUMNS:
        raise ValueError(f"a row must hold 1 to {SOFTMAX_MAX_COLUMNS} values, got {columns}")
    bits = min(_MAX_BITS, 30 - (columns - 1).bit_length())
    return np.rint(np.exp(-float(scale) * np.arange(256)) * 2.0**bits).astype(np.int32)


def softmax(
    q: npt.NDArray[np.integer],
    *,
    scale: float,
    out_scale: float,
    zero_point: int,
    qmin: int = 0,
    qmax: int = 255,
    dtype: str = "uint8",
) -> npt.NDArray[np.integer]:
    """Return the quantized softmax of 8-bit integers over their last axis.

    Parameters
    ----------
    q
        uint8 or int8; the zero point cancels.
    scale
        As `softmax_table` takes it.
    out_scale, zero_point, qmin, qmax, dtype
        Of the result.

    Returns
    -------
    array
        Of `dtype`: clamp(rint(float32(e) * m) + zero_point, qmin, qmax), half to even, where e is the table's entry of
        max(row) - q and m is float32 1 / (float32(sum of e over the row) * out_scale).

    Notes
    -----
    LiteRT's kernel sums a table of float32 exponentials one by one and rounds half up. Summed in integers, the result does not
    depend on the order; the two differ where a probability lies within 2**-8 of a step of a tie.
    """
    rows = q.reshape(-1, q.shape[-1]).astype(np.int32)
    exponentials = softmax_table(scale, rows.shape[1])[rows.max(axis=1, keepdims=True) - rows]
    total = exponentials.sum(axis=1, keepdims=True, dtype=np.int64).astype(np.float32)
    multiplier = np.float32(1) / (total * np.float32(out_scale))
    return requantize(exponentials, multiplier, zero_point, qmin, qmax, dtype).reshape(q.shape)
