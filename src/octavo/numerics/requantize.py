"""Oracle of requantization: an int32 accumulator becomes a quantized integer of the output.

It defines the rounding, and nothing else does: kernels and the other oracles cite `requantize`. No TVM here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .fused import fused_multiply_add
from .quant_params import INTEGER_RANGE


def requantize_multiplier(
    in_scale: npt.ArrayLike, weight_scale: npt.ArrayLike, out_scale: npt.ArrayLike
) -> npt.NDArray[np.float32]:
    """Return float32(float32(in_scale * weight_scale) / out_scale), each of the two steps rounded to float32.

    Parameters
    ----------
    in_scale, weight_scale, out_scale
        Positive scales; `weight_scale` is a number per tensor or an array (channels,) per axis.

    Returns
    -------
    array
        float32, of the shape that the three broadcast to; () where all are numbers. Finite: everything but 0 saturates long
        before.

    Notes
    -----
    The order of the two roundings is LiteRT's with XNNPACK: the product of input and weight scale first, then the quotient. A
    product formed in float64 differs in the last bit for some scales, and then the result at a rounding boundary.
    """
    with np.errstate(over="ignore", under="ignore"):
        product = np.multiply(np.asarray(in_scale, np.float32), np.asarray(weight_scale, np.float32), dtype=np.float32)
        quotient = np.divide(product, np.asarray(out_scale, np.float32), dtype=np.float32)
    return np.asarray(np.minimum(quotient, np.finfo(np.float32).max))


def requantize(
    acc: npt.NDArray[np.signedinteger],
    multiplier: npt.ArrayLike,
    zero_point: int,
    qmin: int,
    qmax: int,
    dtype: str = "uint8",
    *,
    real_bias: npt.ArrayLike | None = None,
    stored_even: bool = False,
) -> npt.NDArray[np.integer]:
    """Return clamp(rint(float32(acc) * multiplier) + zero_point, qmin, qmax).

    Parameters
    ----------
    acc
        int32 or int64 accumulators, channels last.
    multiplier
        float32, a number or (channels,), finite and not negative.
    zero_point, qmin, qmax
        Of the output, within the range of `dtype`, qmin <= qmax.
    dtype
        Quantized dtype of the result.
    real_bias
        float32 that broadcasts like `multiplier`, in units of the result: rint(fma(float32(acc), multiplier, real_bias)).
    stored_even
        Whether a tie becomes an even result, rint(product + zero_point); otherwise rint(product) is even.

    Returns
    -------
    array
        Of `dtype`, shaped as `acc`.

    Notes
    -----
    The accumulator is rounded to float32 (half to even), the product is a float32, and rint rounds half to even. Clamping
    happens before the zero point is added, so that no product is too large to be an integer.
    """
    low, high = INTEGER_RANGE[dtype]
    if not low <= qmin <= qmax <= high:
        raise ValueError(f"[{qmin}; {qmax}] must lie in the range [{low}; {high}] of {dtype}")
    with np.errstate(over="ignore"):  # a product beyond float32 is infinite, and the clamp makes it qmin or qmax
        if real_bias is None:
            product = acc.astype(np.float32) * np.asarray(multiplier, np.float32)
        else:
            product = fused_multiply_add(acc.astype(np.float32), multiplier, real_bias)
    parity = zero_point & 1 if stored_even else 0
    # float64 holds the sum of a clamped float32 product and 1 without rounding.
    clamped = np.clip(product.astype(np.float64), qmin - zero_point, qmax - zero_point)
    rounded = np.rint(clamped + parity) - parity
    return (rounded.astype(np.int32) + np.int32(zero_point)).astype(dtype)
