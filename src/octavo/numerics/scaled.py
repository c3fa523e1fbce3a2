"""Oracle of float32 results of integer layers: the accumulator's real value, the bias, the clamp. No TVM here."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from .fused import fused_multiply_add


def scaled(
    acc: npt.NDArray[np.int32],
    multiplier: npt.ArrayLike,
    bias: npt.ArrayLike,
    *,
    input_scale: npt.ArrayLike | None = None,
    low: float = -math.inf,
    high: float = math.inf,
) -> npt.NDArray[np.float32]:
    """Return clamp(fma(float32(acc) * input_scale, multiplier, bias), low, high) in float32.

    Parameters
    ----------
    acc
        int32 (..., channels), from `conv2d_accumulate` or `matmul_accumulate` without bias.
    multiplier, bias
        float32 numbers or (channels,): the real value of one unit of the accumulator, and what is added.
    input_scale
        float32 that broadcasts over `acc`, e.g. (rows, 1): the scale of an input quantized at run time, which `multiplier` then
        leaves out. None where `multiplier` holds it.

    Returns
    -------
    array
        float32, shaped as `acc`.

    Notes
    -----
    With `input_scale` this is how XNNPACK ends its qd8 kernels: two products, of which the second is fused with the sum.
    """
    real = np.asarray(acc, np.int32).astype(np.float32)
    if input_scale is not None:
        real = real * np.asarray(input_scale, np.float32)
    result = fused_multiply_add(real, multiplier, bias)
    return np.minimum(np.maximum(result, np.float32(low)), np.float32(high))
