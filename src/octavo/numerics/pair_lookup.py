"""Oracle of any function of two 8-bit tensors, or of one and a constant, element by element: a table by rows. No TVM here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .affine import dequantize
from .quant_params import INTEGER_RANGE, QuantParams

PAIR_LOOKUP_MAX_ROWS = 4096
"""Rows of a table, 256 bytes each: beyond, it outgrows the caches that make it fast."""


def every_real(params: QuantParams) -> npt.NDArray[np.float32]:
    """Return the real values of all 256 integers of per-tensor `params`, int8 or uint8, least first."""
    low, high = INTEGER_RANGE[params.dtype]
    return dequantize(np.arange(low, high + 1).astype(params.dtype), params)


def pair_lookup(
    a: npt.NDArray[np.integer], row: npt.NDArray[np.integer], table: npt.NDArray[np.integer]
) -> npt.NDArray[np.integer]:
    """Return table[row, a - qmin] element by element, with qmin the least value of `a`'s dtype (int8 or uint8).

    Parameters
    ----------
    a, row
        Shapes that broadcast; `row` counts from 0.
    table
        (rows, 256).
    """
    low, _ = INTEGER_RANGE[str(a.dtype)]
    return table[row, a.astype(np.int32) - low]
