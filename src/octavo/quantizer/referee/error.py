"""How far a quantized model's results are from the float model's. Runs nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir.graph.dataflow import DataflowView, operand_vars, static_shape
from ...ir.graph.moving import call_behind_views
from ...numerics.arrays import Array
from ...numerics.statistics.metrics import ratio_db

_MIN_PROBABILITY = 1e-6
"""What is less likely is no part of the comparison: nobody reads it, and integers make it 0."""


def sqnr_by_result(
    view: DataflowView, floats: Sequence[Sequence[Array]], results: Sequence[Sequence[Array]]
) -> list[float | None]:
    """Return the signal to noise ratio of each result in dB, of a softmax that of its scores; None of one that is not float.

    Parameters
    ----------
    view
        Of the float model.
    floats, results
        What the float model and the quantized one gave, sample by sample.
    """
    powers = zip(*(error_powers(view, real) for real in floats), strict=True)
    noises = zip(*(error_powers(view, real, made) for real, made in zip(floats, results, strict=True)), strict=True)
    return [None if None in power else ratio_db(sum(power), sum(noise)) for power, noise in zip(powers, noises, strict=True)]


def error_powers(view: DataflowView, real: Sequence[Array], made: Sequence[Array] | None = None) -> list[float | None]:
    """Return the power of each result of one sample, or of its error, of a softmax that of its scores; None of one not float.

    Parameters
    ----------
    real, made
        What the float model and the quantized one gave; without that it is the power of the float model's.
    """
    found: list[float | None] = []
    for index, var in enumerate(operand_vars(view.result)):
        values = [each[index] for each in (real, made) if each is not None]
        if not np.issubdtype(values[0].dtype, np.floating):
            found.append(None)
            continue
        softmax = call_behind_views(view, var, "nn.softmax")
        if softmax is not None:
            shape = static_shape(softmax) or values[0].shape
            values = [_scores(value.reshape(shape), int(softmax.attrs.axis)) for value in values]
        error = values[0] if made is None else np.subtract(values[1], values[0], dtype=np.float64)
        found.append(float(np.sum(np.square(error, dtype=np.float64))))
    return found


def same_class(real: Sequence[Array], made: Sequence[Array]) -> float | None:
    """Return 1 where all results [1, classes] of a sample name the same class, 0 where one does not; None without any."""
    pairs = [
        (x, y) for x, y in zip(real, made, strict=True) if x.dtype.kind == "f" and x.ndim == 2 and x.shape[0] == 1 < x.shape[1]
    ]
    return min((float(x.argmax() == y.argmax()) for x, y in pairs), default=None)


def _scores(probabilities: Array, axis: int) -> Array:
    """Return what a softmax made these of, but for the number that it leaves out of account: their mean is 0 here."""
    scores = np.log(np.maximum(probabilities.astype(np.float64), _MIN_PROBABILITY))
    return scores - scores.mean(axis=axis, keepdims=True)
