"""Requantization: an accumulator becomes a quantized integer, or the float32 number that it stands for.

It defines that rounding, and nothing else does: kernels and the other oracles cite `requantize`. No TVM here.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..quant_params import INTEGER_RANGE
from .fixed_point import FixedPointMultiplier
from .fused_multiply_add import fused_multiply_add


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


Multiplier = FixedPointMultiplier | npt.NDArray[np.float32]
"""A fixed-point multiplier, or float32 in_scale * weight_scale / out_scale: a number or one for each output channel."""


def clamp_bounds(qmin: int | None, qmax: int | None, dtype: str) -> tuple[int, int]:
    """Return the bounds of a clamp, None being the dtype's own; ValueError where they leave its range."""
    low, high = INTEGER_RANGE[dtype]
    qmin, qmax = low if qmin is None else qmin, high if qmax is None else qmax
    if not low <= qmin <= qmax <= high:
        raise ValueError(f"[{qmin}; {qmax}] must lie in the range [{low}; {high}] of {dtype}")
    return qmin, qmax


def clamp(values: npt.NDArray[Any], qmin: int | None, qmax: int | None, dtype: str) -> npt.NDArray[np.integer]:
    """Return whole numbers clamped to the `clamp_bounds`, as `dtype`."""
    return np.clip(values, *clamp_bounds(qmin, qmax, dtype)).astype(dtype)


def requantize(
    acc: npt.NDArray[np.signedinteger],
    multiplier: npt.ArrayLike | FixedPointMultiplier,
    zero_point: int,
    qmin: int | None = None,
    qmax: int | None = None,
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
        float32, a number or (channels,), finite and not negative. Or a FixedPointMultiplier, whose `apply` takes the place of
        rint(product): |acc| is its `max_value` at most, and there is no `real_bias`.
    zero_point, qmin, qmax
        Of the output, within the range of `dtype`, qmin <= qmax; None means the dtype's own bound.
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
    if isinstance(multiplier, FixedPointMultiplier):
        return clamp(multiplier.apply(acc) + zero_point, qmin, qmax, dtype)
    with np.errstate(over="ignore"):  # a product beyond float32 is infinite, and the clamp makes it qmin or qmax
        if real_bias is None:
            product = acc.astype(np.float32) * np.asarray(multiplier, np.float32)
        else:
            product = fused_multiply_add(acc.astype(np.float32), multiplier, real_bias)
    parity = zero_point & 1 if stored_even else 0
    # float64 holds the sum of a clamped float32 product and 1 without rounding.
    qmin, qmax = clamp_bounds(qmin, qmax, dtype)
    clamped = np.clip(product.astype(np.float64), qmin - zero_point, qmax - zero_point)
    rounded = np.rint(clamped + parity) - parity
    return (rounded.astype(np.int32) + np.int32(zero_point)).astype(dtype)


ScaledRounding = Literal["fused", "stepwise"]
"""Which results on the way from sums to reals are rounded to float32.

"fused"      fma(acc * input_scale, multiplier, bias): how XNNPACK ends its qd8 kernels. Two roundings.
"stepwise"   acc * (input_scale * multiplier) + bias, each of the three: what ONNX's Cast, Mul and Add behind ConvInteger and
             MatMulInteger state, and what ONNX Runtime's fused kernels compute (MLAS_QGEMM_SCALE_BIAS_OUTPUT_PROCESSOR).
"""


def dequantize_accumulator(
    acc: npt.NDArray[np.int32 | np.int64],
    multiplier: npt.ArrayLike,
    bias: npt.ArrayLike,
    *,
    input_scale: npt.ArrayLike | None = None,
    low: float = -math.inf,
    high: float = math.inf,
    rounding: ScaledRounding = "fused",
) -> npt.NDArray[np.float32]:
    """Return clamp(float32(acc) * input_scale * multiplier + bias, low, high) in float32, rounded as `rounding` says.

    Parameters
    ----------
    acc
        int32 or int64 (..., channels), from `conv2d_accumulate` or `matmul_accumulate` without bias.
    multiplier, bias
        float32 numbers or (channels,): the real value of one unit of the accumulator, and what is added.
    input_scale
        float32 that broadcasts over `acc`, e.g. (rows, 1): the scale of an input quantized at run time, which `multiplier` then
        leaves out. None where `multiplier` holds it.
    rounding
        See `ScaledRounding`.

    Returns
    -------
    array
        float32, shaped as `acc`.
    """
    real = np.asarray(acc).astype(np.float32)
    factor = np.asarray(multiplier, np.float32)
    scale = None if input_scale is None else np.asarray(input_scale, np.float32)
    if rounding == "stepwise":
        result = real * (factor if scale is None else scale * factor) + np.asarray(bias, np.float32)
    else:
        result = fused_multiply_add(real if scale is None else real * scale, factor, bias)
    return np.minimum(np.maximum(result, np.float32(low)), np.float32(high))
