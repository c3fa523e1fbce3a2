"""Oracles of the quantized product and difference of two tensors. No TVM here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .add import AddParameters, add_parameters
from .quant_params import INTEGER_RANGE
from .requantize import requantize


def mul(
    a: npt.NDArray[np.integer],
    b: npt.NDArray[np.integer],
    *,
    a_zero_point: int,
    b_zero_point: int,
    multiplier: float,
    zero_point: int,
    qmin: int = 0,
    qmax: int = 255,
    dtype: str = "uint8",
) -> npt.NDArray[np.integer]:
    """Return the quantized product of two 8-bit tensors.

    Parameters
    ----------
    a, b
        uint8 or int8, of shapes that broadcast.
    a_zero_point, b_zero_point
        Within the range of their dtypes.
    multiplier
        float32 a_scale * b_scale / out_scale, as `requantize_multiplier` forms it.
    zero_point, qmin, qmax, dtype
        Of the result.

    Returns
    -------
    array
        Of `dtype`: clamp(rint(float32((a - a_zero_point) * (b - b_zero_point)) * multiplier) + zero_point, qmin, qmax), half to
        even. The product is at most 255 * 255 in size, so float32 holds it exactly.

    Notes
    -----
    The form of XNNPACK's qs8-vmul and qu8-vmul ("fp32"), which LiteRT runs.
    """
    product = (a.astype(np.int32) - np.int32(a_zero_point)) * (b.astype(np.int32) - np.int32(b_zero_point))
    return requantize(product, np.float32(multiplier), zero_point, qmin, qmax, dtype)


def sub_parameters(a_scale: float, a_zero_point: int, b_scale: float, b_zero_point: int, out_scale: float) -> AddParameters:
    """Choose multipliers and shift for a - b: those of the addition, with b's multiplier negated (as XNNPACK's vsub has them).

    Takes what `add_parameters` takes. `b_multiplier` is in [-2**21; 0]. int32 does not overflow, by the same count of terms.
    """
    p = add_parameters(a_scale, a_zero_point, b_scale, b_zero_point, out_scale)
    return AddParameters(
        a_multiplier=p.a_multiplier,
        b_multiplier=-p.b_multiplier,
        bias=p.bias + 2 * b_zero_point * p.b_multiplier,
        shift=p.shift,
    )


def sub(
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
    """Return the quantized difference a - b of two 8-bit tensors; parameters as `numerics.add` takes them.

    Returns
    -------
    array
        Of `dtype`: clamp(((bias + a * a_multiplier + b * b_multiplier) >> shift) + zero_point, qmin, qmax), half up.
    """
    low, high = INTEGER_RANGE[dtype]
    if not low <= qmin <= qmax <= high:
        raise ValueError(f"[{qmin}; {qmax}] must lie in the range [{low}; {high}] of {dtype}")
    p = sub_parameters(a_scale, a_zero_point, b_scale, b_zero_point, out_scale)
    acc = p.bias + a.astype(np.int64) * p.a_multiplier + b.astype(np.int64) * p.b_multiplier
    return np.clip((acc >> p.shift) + zero_point, qmin, qmax).astype(dtype)
