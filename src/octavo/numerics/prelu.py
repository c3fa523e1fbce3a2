"""Oracle of a leaky relu with slopes that are quantized themselves, in fixed point, as LiteRT computes it. No TVM here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .fixed_point import by_31_bits
from .quant_params import INTEGER_RANGE, QuantParams


def prelu_table(
    slopes: npt.NDArray[np.integer], x: QuantParams, slope: QuantParams, y: QuantParams, *, qmin: int, qmax: int
) -> npt.NDArray[np.integer]:
    """Return, for each slope a row: clamp(d * x.scale / y.scale + y.zero_point) from the zero point on, times the slope below.

    Parameters
    ----------
    slopes
        Integers of `slope`'s dtype, one-dimensional.
    x, slope, y
        Per-tensor parameters, each int8 or uint8; d is the distance from x.zero_point.
    qmin, qmax
        Clamp of the result.

    Returns
    -------
    array
        Of `y.dtype`, (slopes, 256), the least integer of x first.

    Notes
    -----
    Factors are of 31 bits and an exponent, and the product of d and the slope's distance from its zero point is an integer;
    the product rounds half up, then the exponent half away from 0 (TFLite's PRELU).
    """
    low, high = INTEGER_RANGE[x.dtype]
    distance = np.arange(low, high + 1, dtype=np.int64)[None] - int(x.zero_point)
    steepness = slopes.astype(np.int64)[:, None] - int(slope.zero_point)
    ratio = float(x.scale) / float(y.scale)
    above = by_31_bits(np.broadcast_to(distance, (slopes.size, distance.size)), ratio, half_away=True)
    below = by_31_bits(distance * steepness, float(x.scale) * float(slope.scale) / float(y.scale), half_away=True)
    return np.clip(np.where(distance >= 0, above, below) + int(y.zero_point), qmin, qmax).astype(y.dtype)
