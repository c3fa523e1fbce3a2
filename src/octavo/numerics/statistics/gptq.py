"""Rounding weights so that a layer's sums change least: GPTQ's sweep. NumPy only; it knows no graph.

Frantar, Ashkboos, Hoefler and Alistarh, GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers, 2023:
weights are rounded one after the other, and what is left of each error goes to those that come behind it, as far as inputs that
vary together let them make up for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

DAMPING = 0.01
"""Share of the mean diagonal that is added to it: keeps the inverse sane where inputs hardly vary, as in the paper."""

_BLOCK = 128
"""Inputs whose errors are spread together, so that most of the work is products of matrices."""


def gptq_round(weight: Floats, gram: Floats, scale: Floats, *, qmin: int, qmax: int) -> npt.NDArray[np.int64]:
    """Return integers q, [qmin; qmax], of weights such that the rows of (q * scale - weight) @ inputs have little power.

    Parameters
    ----------
    weight
        (groups, outputs, inputs): each group reads inputs of its own.
    gram
        Covariance of the inputs of each group up to a factor, (groups, inputs, inputs): symmetric, no negative eigenvalues.
    scale
        (groups, outputs), of each row.
    qmin, qmax
        Bounds of the integers, inclusive.
    """
    inputs = weight.shape[2]
    diagonal = np.diagonal(gram, axis1=1, axis2=2)
    mean = diagonal.mean(axis=1)
    # The largest first: their errors are spread over most others.
    order = np.argsort(-diagonal, axis=1, kind="stable")
    sorted_gram = np.take_along_axis(np.take_along_axis(gram, order[:, :, None], axis=1), order[:, None, :], axis=2)
    # Inputs that never vary leave nothing to be made up for: any positive diagonal gives rounding to nearest.
    sorted_gram[:, np.arange(inputs), np.arange(inputs)] += np.where(mean > 0, DAMPING * mean, 1.0)[:, None]
    upper = np.linalg.cholesky(np.linalg.inv(sorted_gram)).transpose(0, 2, 1)
    left = np.take_along_axis(weight, order[:, None, :], axis=2)
    rounded: Any = np.empty_like(left)
    for start in range(0, inputs, _BLOCK):
        end = min(start + _BLOCK, inputs)
        errors = np.empty((*weight.shape[:2], end - start))
        for index in range(start, end):
            column = np.clip(np.rint(left[:, :, index] / scale), qmin, qmax)
            rounded[:, :, index] = column
            error = (left[:, :, index] - column * scale) / upper[:, index, index, None]
            left[:, :, index + 1 : end] -= error[:, :, None] * upper[:, None, index, index + 1 : end]
            errors[:, :, index - start] = error
        if end < inputs:
            left[:, :, end:] -= errors @ upper[:, start:end, end:]
    result = np.empty(weight.shape, np.int64)
    np.put_along_axis(result, order[:, None, :], rounded.astype(np.int64), axis=2)
    return result
