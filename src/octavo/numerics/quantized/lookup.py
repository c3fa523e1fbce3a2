"""Oracles of any function of one or two 8-bit tensors, element by element: tables of 256 results. No TVM here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..affine import TieRounding, dequantize, quantize
from ..quant_params import INTEGER_RANGE, QuantParams


def lookup_table(
    function: Callable[[npt.NDArray[Any]], npt.NDArray[np.floating[Any]]],
    x: QuantParams,
    y: QuantParams,
    *,
    qmin: int | None = None,
    qmax: int | None = None,
    rounding: TieRounding = "half_even",
    exact: bool = False,
) -> npt.NDArray[np.integer]:
    """Return the results of quantize(function(dequantize(q))) for every q, clamped to [qmin; qmax].

    Parameters
    ----------
    function
        float32 [256] to float32 [256], element by element.
    x, y
        Per-tensor parameters of operand and result, each int8 or uint8.
    qmin, qmax
        Of the result; None for its dtype's own.
    rounding
        Where ties go.
    exact
        Whether real values are float64, as for accelerators whose results no float32 rounds.

    Returns
    -------
    array
        Of `y.dtype`, shape [256]: entry i is the result of q = i + qmin of `x.dtype`, so -128 comes first for int8.

    Notes
    -----
    A NaN (the logarithm of a negative number) becomes qmin, as `quantize` has it.
    """
    with np.errstate(all="ignore"):  # operands that the network never meets may overflow or have no result
        real = function(real_values(x, exact=exact))
    table = quantize(real, y, rounding, exact=exact)
    return np.clip(table, y.qmin if qmin is None else qmin, y.qmax if qmax is None else qmax)


def lookup(q: npt.NDArray[np.integer], table: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Return table[q - qmin] element by element, with qmin the least value of `q`'s dtype (int8 or uint8)."""
    low, _ = INTEGER_RANGE[str(q.dtype)]
    return table[q.astype(np.int32) - low]


PAIR_LOOKUP_MAX_ROWS = 4096
"""Rows of a table, 256 bytes each: beyond, it outgrows the caches that make it fast."""


def real_values(params: QuantParams, *, exact: bool = False) -> npt.NDArray[np.floating[Any]]:
    """Return the real values of all integers of per-tensor `params`, least first: float32, with `exact` float64."""
    low, high = INTEGER_RANGE[params.dtype]
    every = np.arange(low, high + 1)
    if exact:
        return (every - int(params.zero_point)) * float(params.scale)
    return dequantize(every.astype(params.dtype), params)


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
