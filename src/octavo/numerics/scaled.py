"""Oracle of float32 results of integer layers: the accumulator's real value, the bias, the clamp. No TVM here."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from .fused import fused_multiply_add

ScaledForm = Literal["fused", "stepwise"]
"""Which results on the way from sums to reals are rounded to float32.

"fused"      fma(acc * input_scale, multiplier, bias): how XNNPACK ends its qd8 kernels. Two roundings.
"stepwise"   acc * (input_scale * multiplier) + bias, each of the three: what ONNX's Cast, Mul and Add behind ConvInteger and
             MatMulInteger state, and what ONNX Runtime's fused kernels compute (MLAS_QGEMM_SCALE_BIAS_OUTPUT_PROCESSOR).
"""


def scaled(
    acc: npt.NDArray[np.int32],
    multiplier: npt.ArrayLike,
    bias: npt.ArrayLike,
    *,
    input_scale: npt.ArrayLike | None = None,
    low: float = -math.inf,
    high: float = math.inf,
    form: ScaledForm = "fused",
) -> npt.NDArray[np.float32]:
    """Return clamp(float32(acc) * input_scale * multiplier + bias, low, high) in float32, rounded as `form` says.

    Parameters
    ----------
    acc
        int32 (..., channels), from `conv2d_accumulate` or `matmul_accumulate` without bias.
    multiplier, bias
        float32 numbers or (channels,): the real value of one unit of the accumulator, and what is added.
    input_scale
        float32 that broadcasts over `acc`, e.g. (rows, 1): the scale of an input quantized at run time, which `multiplier` then
        leaves out. None where `multiplier` holds it.
    form
        See `ScaledForm`.

    Returns
    -------
    array
        float32, shaped as `acc`.
    """
    real = np.asarray(acc, np.int32).astype(np.float32)
    factor = np.asarray(multiplier, np.float32)
    scale = None if input_scale is None else np.asarray(input_scale, np.float32)
    if form == "stepwise":
        result = real * (factor if scale is None else scale * factor) + np.asarray(bias, np.float32)
    else:
        result = fused_multiply_add(real if scale is None else real * scale, factor, bias)
    return np.minimum(np.maximum(result, np.float32(low)), np.float32(high))
