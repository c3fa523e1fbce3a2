"""Oracle of the quantized logarithm of a softmax: in integers alone, the logarithm of the sum from a table. No TVM here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .softmax import softmax_table

LOG_FRACTION_BITS = 20
"""Bits of a logarithm behind the point."""

LOG_INDEX_BITS = 8
"""Leading bits of a sum that choose the table's entry; those behind them interpolate."""

LOG_REST_BITS = 14
"""Bits behind those that interpolate."""

FACTOR_BITS = 40
"""Bits of a factor behind the point."""

LOG_SOFTMAX_MIN_SCALE = 2.0**-12
"""Smallest scale of a result whose steps int64 holds."""

_LARGEST_RATIO = 2.0**12


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LogSoftmaxParameters:
    """Constants of one op: result = (rounding - d * distance_factor - l * log_factor) >> FACTOR_BITS, then the zero point.

    d is a value's distance from the row's largest; l is log2 of the row's sum of exponentials, exp(0) counting as 1, in units of
    2**-LOG_FRACTION_BITS.

    Parameters
    ----------
    exponentials
        int32 [256], as `softmax_table` has them.
    log_of_one
        log2 of exponentials[0], in the units of l.
    logarithms
        int32 [257]: log2(1 + i / 256) in the units of l.
    distance_factor, log_factor
        Below 2**53.
    """

    exponentials: npt.NDArray[np.int32]
    log_of_one: int
    logarithms: npt.NDArray[np.int32]
    distance_factor: int
    log_factor: int


def log_softmax_parameters(scale: float, out_scale: float, columns: int) -> LogSoftmaxParameters:
    """Choose the constants; `scale` is the input's, times a factor beta, `columns` as `softmax_table` takes them.

    Notes
    -----
    A ratio of scales beyond 2**12 counts as 2**12: any distance then leaves the range of 8 bits. out_scale is 2**-12 at least
    (ValueError).
    """
    if out_scale < LOG_SOFTMAX_MIN_SCALE:
        raise ValueError(f"out_scale {out_scale} is below {LOG_SOFTMAX_MIN_SCALE}")
    exponentials = softmax_table(scale, columns)
    entries = np.log2(1 + np.arange((1 << LOG_INDEX_BITS) + 1) / (1 << LOG_INDEX_BITS))
    ratio = min(float(scale) / float(out_scale), _LARGEST_RATIO)
    return LogSoftmaxParameters(
        exponentials=exponentials,
        log_of_one=(int(exponentials[0]).bit_length() - 1) << LOG_FRACTION_BITS,
        logarithms=np.rint(entries * 2.0**LOG_FRACTION_BITS).astype(np.int32),
        distance_factor=round(ratio * 2.0**FACTOR_BITS),
        log_factor=round(math.log(2) / float(out_scale) * 2.0 ** (FACTOR_BITS - LOG_FRACTION_BITS)),
    )


def log_softmax(
    q: npt.NDArray[np.integer],
    *,
    scale: float,
    out_scale: float,
    zero_point: int,
    qmin: int = 0,
    qmax: int = 255,
    dtype: str = "uint8",
) -> npt.NDArray[np.integer]:
    """Return the quantized log_softmax of 8-bit integers over their last axis; parameters as `softmax` takes them.

    Notes
    -----
    Rounds half up. l is off by 2**-18 at most, below 2**-10 of a step at LiteRT's scale of 1/16.
    """
    rows = q.reshape(-1, q.shape[-1]).astype(np.int64)
    p = log_softmax_parameters(scale, out_scale, rows.shape[1])
    distance = rows.max(axis=1, keepdims=True) - rows
    total = p.exponentials[distance].sum(axis=1, keepdims=True, dtype=np.int64)
    exponent = np.floor(np.log2(total.astype(np.float64))).astype(np.int64)  # exact: a float64 holds every sum
    fraction = (total << (30 - exponent)) - (1 << 30)
    index = fraction >> (30 - LOG_INDEX_BITS)
    rest = (fraction >> (30 - LOG_INDEX_BITS - LOG_REST_BITS)) & ((1 << LOG_REST_BITS) - 1)
    low, high = (p.logarithms[at].astype(np.int64) for at in (index, index + 1))
    log2 = (exponent << LOG_FRACTION_BITS) + low + (((high - low) * rest) >> LOG_REST_BITS) - p.log_of_one
    steps = ((1 << (FACTOR_BITS - 1)) - distance * p.distance_factor - log2 * p.log_factor) >> FACTOR_BITS
    return np.clip(steps + zero_point, qmin, qmax).astype(dtype).reshape(q.shape)
