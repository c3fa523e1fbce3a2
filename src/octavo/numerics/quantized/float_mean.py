"""Oracle of the quantized mean in float32, as ONNX Runtime's QLinearAveragePool has it. No TVM here.

The mean of integers, exact but for one product, is in `pool2d` and `reduce`; the two differ beside ties.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..rounding.requantize import clamp

_UNIT_ROUNDOFF = 2.0**-24
"""Largest relative error of one rounding to float32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatMeanParameters:
    """Scales, used as float32, and zero points of x and of the result.

    Both zero points are those of the integers at hand, to which `relabelling` was added if the source's are others; the sum with
    the zero point is rounded as the source's integers have it.
    """

    in_scale: float
    input_zero_point: int
    out_scale: float
    zero_point: int
    relabelling: int = 0

    @property
    def ratio(self) -> np.float32:
        """float32 in_scale / out_scale."""
        return np.float32(np.float32(self.in_scale) / np.float32(self.out_scale))

    def margin(self, terms: int) -> float:
        """Return how far from a tie, in steps, the mean of up to `terms` 8-bit values is sure to be the same as that of integers.

        That is rint(float32(sum of x - input_zero_point) * float32(ratio / count) + zero_point), saturated. With u = 2**-24,
        the sum here is off by no more than terms * u times the sum of all magnitudes, each up to 255. Two quotients and a sum
        here, and four roundings there, are of magnitudes up to 512 (what is beyond saturates either way): 7 * 512 * u at most.
        1% more covers products of errors, as long as terms * u is below it.
        """
        return 1.01 * _UNIT_ROUNDOFF * (terms * 255.0 * float(self.ratio) + 8 * 512) if terms * _UNIT_ROUNDOFF < 0.01 else 1.0


def float_mean(
    x: npt.NDArray[np.integer],
    parameters: FloatMeanParameters,
    *,
    axis: int,
    count: int,
    qmin: int | None = None,
    qmax: int | None = None,
    dtype: str = "uint8",
) -> npt.NDArray[np.integer]:
    """Return the quantized mean of 8-bit x over `axis`, every operation rounded to float32.

    Parameters
    ----------
    x
        8-bit, of any shape.
    parameters
        Scales and zero points.
    axis
        Summed over, from its first element to its last.
    count
        What the sum is divided by; absent values are real 0.
    qmin, qmax, dtype
        Of the result.

    Returns
    -------
    array
        clamp(rint(sum((x - input_zero_point) * in_scale) / count / out_scale + zero_point), qmin, qmax), half to even.

    Notes
    -----
    As ONNX Runtime 1.2x computes it (`qlinear_pool.cc`), found equal on every one of 50,000 windows of both dtypes.
    """
    p = parameters
    real = (x.astype(np.int32) - np.int32(p.input_zero_point)).astype(np.float32) * np.float32(p.in_scale)
    total = np.zeros(np.delete(np.asarray(real.shape), axis), np.float32)
    for values in np.moveaxis(real, axis, 0):
        total = total + values
    with np.errstate(over="ignore"):  # infinity saturates as it should
        stored = total / np.float32(count) / np.float32(p.out_scale) + np.float32(p.zero_point - p.relabelling)
    return clamp(np.rint(stored).astype(np.float64) + p.relabelling, qmin, qmax, dtype)
