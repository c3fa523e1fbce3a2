"""Oracle of group normalization of quantized images: integer sums, float32 from there on. No TVM here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .fused import fused_multiply_add
from .layer_norm import in_steps
from .requantize import requantize

GROUP_NORM_MAX_VALUES = 1 << 23
"""Values of a group at most: its variance times their number squared then stays below 2**63."""


def group_norm(
    q: npt.NDArray[np.integer],
    *,
    groups: int,
    scale: float,
    epsilon: float,
    gamma: npt.NDArray[np.float32],
    beta: npt.NDArray[np.float32],
    out_scale: float,
    zero_point: int,
    qmin: int = 0,
    qmax: int = 255,
) -> npt.NDArray[np.integer]:
    """Return the images of q, each group of channels normalized: (x - mean) / sqrt(variance + epsilon) * gamma + beta, quantized.

    Parameters
    ----------
    q
        uint8 (images, pixels, channels); `GROUP_NORM_MAX_VALUES` values of a group at most. Their zero point cancels.
    groups
        Into how many equal parts the channels are cut.
    scale
        Of q.
    gamma, beta
        float32 (channels,).
    out_scale, zero_point, qmin, qmax
        Of the result.

    Notes
    -----
    With n the values of a group, s their sum and v = n * sum(q * q) - s * s, both exact, the result is rint(fma(q, m, b)) with
    m = 1 / sqrt(v / n**2 + epsilon / scale**2) * (gamma / out_scale) and b = fma(-(s / n), m, beta / out_scale); each operation
    rounds to float32 once.
    """
    images, pixels, channels = q.shape
    x = q.astype(np.int64).reshape(images, pixels, groups, channels // groups)
    count = x.shape[1] * x.shape[3]
    total, squares = x.sum(axis=(1, 3)), (x * x).sum(axis=(1, 3))
    variance = (count * squares - total * total).astype(np.float32) / np.float32(count * count)
    inverse = np.float32(1) / np.sqrt(variance + in_steps(epsilon, scale))
    mean = total.astype(np.float32) / np.float32(count)
    inverse, mean = (np.repeat(values, channels // groups, axis=1)[:, np.newaxis] for values in (inverse, mean))
    factors, addends = (values / np.float32(out_scale) for values in (gamma, beta))
    multiplier = inverse * factors
    bias = fused_multiply_add(-mean, multiplier, np.broadcast_to(addends, multiplier.shape))
    return requantize(q.astype(np.int32), multiplier, zero_point, qmin, qmax, real_bias=bias)
