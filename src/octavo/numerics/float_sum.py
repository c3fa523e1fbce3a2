"""Oracle of the quantized sum and difference in float32, as ONNX Runtime has the sum: two fused multiply-adds, half to even.

No TVM here. The sum in integers alone, as LiteRT has it, is in `add`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .fused import fused_multiply_add
from .quant_params import INTEGER_RANGE

_LARGEST_RATIO = 2.0**100
"""Beyond it every result saturates anyway; products stay finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatSumParameters:
    """Constants of one sum: y = clamp(rint(fma(a, a_ratio, fma(b, b_ratio, fixed))) + after, qmin, qmax).

    All but `after` are float32 values.
    """

    a_ratio: float
    b_ratio: float
    fixed: float
    after: int


def float_sum_parameters(
    a_scale: float,
    a_zero_point: int,
    b_scale: float,
    b_zero_point: int,
    out_scale: float,
    zero_point: int,
    *,
    subtract: bool = False,
    stored: bool = True,
) -> FloatSumParameters:
    """Choose the constants of a + b, or a - b, of 8-bit integers as the source stores them.

    Parameters
    ----------
    a_scale, b_scale, out_scale
        Positive finite scales; used as float32.
    a_zero_point, b_zero_point, zero_point
        Zero points of a, b and the result.
    subtract
        Whether b is subtracted.
    stored
        Whether the zero point is added before rounding, so that a tie becomes an even integer as stored; else after it.

    Notes
    -----
    With `stored`, and for a sum, this is ONNX Runtime's QLinearAdd on x86 processors, found by trying all pairs of integers under
    many parameters: fixed = zero_point - fma(a_ratio, a_zero_point, b_ratio * b_zero_point), ratios are float32 quotients.
    """
    with np.errstate(over="ignore"):
        ratios = [min(float(np.float32(scale) / np.float32(out_scale)), _LARGEST_RATIO) for scale in (a_scale, b_scale)]
    a_ratio, b_ratio = np.float32(ratios[0]), np.float32(-ratios[1] if subtract else ratios[1])
    zeros = fused_multiply_add(a_ratio, np.float32(a_zero_point), np.float32(b_ratio * np.float32(b_zero_point)))
    fixed = np.float32(np.float32(zero_point if stored else 0) - zeros)
    return FloatSumParameters(
        a_ratio=float(a_ratio), b_ratio=float(b_ratio), fixed=float(fixed), after=0 if stored else zero_point
    )


def float_sum(
    a: npt.NDArray[np.integer],
    b: npt.NDArray[np.integer],
    parameters: FloatSumParameters,
    *,
    qmin: int = 0,
    qmax: int = 255,
    dtype: str = "uint8",
) -> npt.NDArray[np.integer]:
    """Return the quantized sum of two 8-bit tensors of shapes that broadcast; see FloatSumParameters for the formula."""
    low, high = INTEGER_RANGE[dtype]
    if not low <= qmin <= qmax <= high:
        raise ValueError(f"[{qmin}; {qmax}] must lie in the range [{low}; {high}] of {dtype}")
    p = parameters
    inner = fused_multiply_add(b.astype(np.float32), np.float32(p.b_ratio), np.float32(p.fixed))
    real = fused_multiply_add(a.astype(np.float32), np.float32(p.a_ratio), inner)
    return np.clip(np.rint(real).astype(np.float64) + p.after, qmin, qmax).astype(dtype)
