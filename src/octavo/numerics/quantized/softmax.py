"""Oracles of the quantized softmax: tables of exponentials as integers, their exact sum, one quotient a row. No TVM here.

8 bits and 16 bits share no arithmetic: TFLite interpolates tables of 513 entries for 16 bits, QDQ models have a float32 one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..rounding.fixed_point import FixedPointMultiplier, fixed_point_multiplier
from ..rounding.requantize import requantize

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


SHORT_ROW_BITS = 30 - _MAX_BITS
"""Rows of up to 2**SHORT_ROW_BITS values have one table; each power of two beyond has its own."""


def softmax_tables(scale: float) -> npt.NDArray[np.int32]:
    """Return the tables of rows of every length: row i is that of up to 2**(SHORT_ROW_BITS + i) values."""
    lengths = range(SHORT_ROW_BITS, (SOFTMAX_MAX_COLUMNS - 1).bit_length() + 1)
    return np.stack([softmax_table(scale, 1 << bits) for bits in lengths])


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


IntegerArray = npt.NDArray[np.int64]

INT16_SOFTMAX_MAX_COLUMNS = 1 << 15
"""Values of a row whose exponentials, each up to 32767, are sure to add up within int32."""

_RANGE = 10.0
"""exp(-10) counts as 0."""


def _half_away(value: float) -> float:
    return float(np.copysign(np.floor(abs(value) + 0.5), value))


def _interpolation_table(function: Callable[[float], float], low: float, high: float) -> npt.NDArray[np.int16]:
    """Return function times 32768 at 513 points of [low; high], each moved by half the error that interpolation makes midway."""
    width = (high - low) / 512
    entries: list[float] = []
    for index in range(512):
        here, middle, after = (32768 * function(low + (index + part) * width) for part in (0.0, 0.5, 1.0))
        value = _half_away(here)
        interpolated = _half_away((after + value) / 2)
        entries.append(value - _half_away((interpolated - _half_away(middle)) / 2))
    entries.append(_half_away(32768 * function(high)))
    return np.clip(entries, -32768, 32767).astype(np.int16)


def interpolated(index: IntegerArray, table: npt.NDArray[np.int16]) -> IntegerArray:
    """Return the table at int16 indices: the upper nine bits choose an entry, the lower seven go on towards the next one."""
    wide = table.astype(np.int64)
    at = 256 + (index >> 7)
    return wide[at] + (((wide[at + 1] - wide[at]) * (index & 127) + 64) >> 7)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Int16SoftmaxParameters:
    """Constants of one softmax.

    Parameters
    ----------
    factor
        From differences of the input to 1 / 65535 of `10`.
    exponentials
        int16 [513]: exp over [-10; 0].
    reciprocals
        int16 [513]: 1 / (1 + x) over [0; 1].
    """

    factor: FixedPointMultiplier
    exponentials: npt.NDArray[np.int16]
    reciprocals: npt.NDArray[np.int16]


def int16_softmax_parameters(scale: float, beta: float = 1.0) -> Int16SoftmaxParameters:
    """Return the constants for an input of this scale, multiplied by `beta`."""
    scaled = float(np.float32(scale) * np.float32(beta))
    return Int16SoftmaxParameters(
        factor=fixed_point_multiplier(scaled / (_RANGE / 65535.0), "twice_away"),
        exponentials=_interpolation_table(lambda x: float(np.exp(x)), -_RANGE, 0.0),
        reciprocals=_interpolation_table(lambda x: 1.0 / (1.0 + x), 0.0, 1.0),
    )


def softmax_int16(x: npt.NDArray[np.int16], *, scale: float, beta: float = 1.0) -> npt.NDArray[np.int16]:
    """Return the softmax of int16 (..., columns) along its last axis, as int16 of scale 1 / 32768 and zero point 0.

    Parameters
    ----------
    x
        At most `INT16_SOFTMAX_MAX_COLUMNS` columns.
    scale, beta
        Of the input; they enter as a float32 product.

    Notes
    -----
    TFLite's steps: e = exp by table of the distance from the row's largest value, the sum of e shifted to 1.x, its reciprocal by
    table, and the product shifted back, half up.
    """
    p = int16_softmax_parameters(scale, beta)
    wide = x.astype(np.int64)
    distance = wide - wide.max(axis=-1, keepdims=True)
    e = interpolated(np.clip(p.factor.apply(distance) + 32767, -32768, 32767), p.exponentials)
    total = e.sum(axis=-1, keepdims=True)
    bits = np.floor(np.log2(total)).astype(np.int64)  # of a sum below 2**30: exact in float64
    normal = ((total << (30 - bits)) + (1 << 13)) >> 14
    reciprocal = interpolated(np.clip(normal - (1 << 15) - (1 << 16), -32768, 32767), p.reciprocals)
    return np.clip((e * reciprocal + ((1 << bits) >> 1)) >> bits, 0, 32767).astype(np.int16)


EXACT_SOFTMAX_BITS = 40
"""Binary digits of the exponentials of `exact_softmax_int16`: a probability of 16 bits has 24 of them behind it."""

EXACT_SOFTMAX_MAX_COLUMNS = 1 << 22
"""Values of a row whose exponentials are sure to add up within 2**62."""


def exact_softmax_table(scale: float) -> npt.NDArray[np.int64]:
    """Return rint(exp(-scale * d) * 2**40) for the distances d from a row's largest value, up to the first entry of 0."""
    distance = np.arange(min(65536, int(np.ceil(EXACT_SOFTMAX_BITS * np.log(2) / scale)) + 2))
    return np.rint(np.exp(-float(scale) * distance) * 2.0**EXACT_SOFTMAX_BITS).astype(np.int64)


def exact_softmax_int16(
    x: npt.NDArray[np.integer], *, scale: float, out_scale: float, zero_point: int, qmin: int = -32768, qmax: int = 32767
) -> npt.NDArray[np.int16]:
    """Return the softmax of 16-bit (..., columns) along its last axis, as int16 of any scale and zero point.

    Parameters
    ----------
    x
        int16 or uint16, whose zero point cancels; at most `EXACT_SOFTMAX_MAX_COLUMNS` columns.
    scale
        Of the input.
    out_scale, zero_point, qmin, qmax
        Of the result.

    Notes
    -----
    Exponentials by table, their exact sum, one float64 quotient a row and one product a value, half to even: float32 kernels, as
    ONNX Runtime's, are a step off it for one value in ten thousand.
    """
    wide, table = x.astype(np.int64), exact_softmax_table(scale)
    distance = wide.max(axis=-1, keepdims=True) - wide
    e = np.where(distance < table.size, table[np.minimum(distance, table.size - 1)], 0)
    factor = 1.0 / (e.sum(axis=-1, keepdims=True).astype(np.float64) * float(np.float32(out_scale)))
    steps = np.rint(np.minimum(e.astype(np.float64) * factor, 131072.0)).astype(np.int64)
    return np.clip(steps + zero_point, qmin, qmax).astype(np.int16)
