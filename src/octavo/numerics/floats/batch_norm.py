"""Folding a batch normalization into the convolution before it. Pure arithmetic: no graph, no TVM."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


def fold_batch_norm(
    weight: Array, bias: Array | None, gamma: Array, beta: Array, mean: Array, variance: Array, *, epsilon: float, axis: int
) -> tuple[Array, Array]:
    """Return the weight and bias of a convolution that equals convolution followed by batch normalization.

    gamma * (conv(x, w) + b - mean) / sqrt(variance + epsilon) + beta = conv(x, w * f) + (b - mean) * f + beta
    with f = gamma / sqrt(variance + epsilon), computed in float64 and rounded to float32 once.

    Parameters
    ----------
    weight
        Any layout; `axis` is that of the output channels, of size C.
    bias
        (C,), or None for zeros.
    gamma, beta, mean, variance
        (C,).
    """
    factor = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    shape = [1] * weight.ndim
    shape[axis] = -1
    start = 0.0 if bias is None else bias.astype(np.float64)
    folded_bias = (start - mean.astype(np.float64)) * factor + beta.astype(np.float64)
    return (weight.astype(np.float64) * factor.reshape(shape)).astype(np.float32), folded_bias.astype(np.float32)
