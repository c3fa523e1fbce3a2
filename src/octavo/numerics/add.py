"""Oracle of the quantized addition, in integers alone, and the choice of its multipliers and shift. No TVM here."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .quant_params import INTEGER_RANGE

_MULTIPLIER_BITS = 20
"""The larger multiplier lies in [2**20; 2**21]."""

_SHIFT_MIN, _SHIFT_MAX = 1, 30


@dataclass(frozen=True, kw_only=True, slots=True)
class AddParameters:
    """Constants of one quantized addition: y = clamp(((bias + a * a_multiplier + b * b_multiplier) >> shift) + zero_point).

    Parameters
    ----------
    a_multiplier, b_multiplier
        int32 in [0; 2**21].
    bias
        int32: 2**(shift - 1), which makes the shift round half up, less the zero points times the multipliers.
    shift
        In [1; 30].
    """

    a_multiplier: int
    b_multiplier: int
    bias: int
    shift: int


def add_parameters(a_scale: float, a_zero_point: int, b_scale: float, b_zero_point: int, out_scale: float) -> AddParameters:
    """Choose multipliers and shift for a + b, with 8-bit a and b.

    Parameters
    ----------
    a_scale, b_scale, out_scale
        Positive finite scales; used as float32.
    a_zero_point, b_zero_point
        Within the range of their 8-bit dtypes.

    Returns
    -------
    AddParameters
        The ratios in_scale / out_scale (a float32 quotient) times 2**shift, rounded half to even.

    Notes
    -----
    The form is that of XNNPACK's quantized addition (qs8-vadd and qu8-vadd), which LiteRT runs, so that TFLite models agree with
    it bit for bit: shift = 20 - floor(log2(larger ratio)). XNNPACK takes ratios in [2**-10; 2**8) only. Beyond:

    * larger ratio < 2**-10: the shift stays at 30 and the multipliers shrink. The sum is below 510 * 2**-10 < 0.5 in size, so the
      result is the zero point, exactly.
    * larger ratio >= 2**20: the shift stays at 1 and both ratios are halved together until they fit. A difference of one in the
      accumulator is then more than one output step, and the result saturates unless the addends cancel to the 21 bits kept.

    int32 never overflows, in any order of the additions: a term q * multiplier is at most 255 * 2**21 < 2**29 in size, so are the
    two products with zero points in the bias, and the rounding constant is at most 2**29; even the positive terms alone
    (2**29 + 2 * 255 * 2**21) and the negative ones alone stay below 2**31.
    """
    largest = float(np.finfo(np.float32).max)
    with np.errstate(over="ignore", under="ignore"):
        ratios = [float(np.minimum(np.float32(scale) / np.float32(out_scale), largest)) for scale in (a_scale, b_scale)]
    exponent = math.frexp(max(ratios))[1] - 1 if max(ratios) > 0 else -_SHIFT_MAX
    wanted = _MULTIPLIER_BITS - exponent
    shift = min(max(wanted, _SHIFT_MIN), _SHIFT_MAX)
    # `wanted` bits keep the larger multiplier in its range where the shift could not follow the ratio down.
    a_multiplier, b_multiplier = (int(np.rint(math.ldexp(ratio, min(wanted, _SHIFT_MAX)))) for ratio in ratios)
    bias = (1 << (shift - 1)) - a_zero_point * a_multiplier - b_zero_point * b_multiplier
    return AddParameters(a_multiplier=a_multiplier, b_multiplier=b_multiplier, bias=bias, shift=shift)


def add(
    a: npt.NDArray[np.integer],
    b: npt.NDArray[np.integer],
    *,
    a_scale: float,
    a_zero_point: int,
    b_scale: float,
    b_zero_point: int,
    out_scale: float,
    zero_point: int,
    qmin: int = 0,
    qmax: int = 255,
    dtype: str = "uint8",
) -> npt.NDArray[np.integer]:
    """Return the quantized sum of two 8-bit tensors.

    Parameters
    ----------
    a, b
        uint8 or int8, of shapes that broadcast.
    a_scale, a_zero_point, b_scale, b_zero_point, out_scale
        As `add_parameters` takes them.
    zero_point, qmin, qmax, dtype
        Of the result.

    Returns
    -------
    array
        Of `dtype`: clamp(((bias + a * a_multiplier + b * b_multiplier) >> shift) + zero_point, qmin, qmax), half up.
    """
    low, high = INTEGER_RANGE[dtype]
    if not low <= qmin <= qmax <= high:
        raise ValueError(f"[{qmin}; {qmax}] must lie in the range [{low}; {high}] of {dtype}")
    p = add_parameters(a_scale, a_zero_point, b_scale, b_zero_point, out_scale)
    acc = p.bias + a.astype(np.int64) * p.a_multiplier + b.astype(np.int64) * p.b_multiplier
    return np.clip((acc >> p.shift) + zero_point, qmin, qmax).astype(dtype)
