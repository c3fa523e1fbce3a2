"""How far a quantized model's results are from the float model's. Runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...ir.graph.dataflow import DataflowView, operand_vars, static_shape
from ...ir.graph.moving import call_behind_views
from ...numerics.arrays import Array
from ...numerics.statistics.metrics import sqnr_db

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
    return [None if pair is None else _sqnr_db(pair) for pair in compared_results(view, floats, results)]


def compared_results(
    view: DataflowView, floats: Sequence[Sequence[Array]], results: Sequence[Sequence[Array]]
) -> Iterator[tuple[list[Array], list[Array]] | None]:
    """Yield of each result what is compared, sample by sample, of a softmax its scores; None of one that is not float."""
    for index, var in enumerate(operand_vars(view.result)):
        pair = [each[index] for each in floats], [each[index] for each in results]
        if not np.issubdtype(pair[0][0].dtype, np.floating):
            yield None
            continue
        softmax = call_behind_views(view, var, "nn.softmax")
        if softmax is not None:
            axis, shape = int(softmax.attrs.axis), static_shape(softmax) or pair[0][0].shape
            real, made = ([_scores(value.reshape(shape), axis) for value in values] for values in pair)
            pair = real, made
        yield pair


def _sqnr_db(pair: tuple[list[Array], list[Array]]) -> float:
    return sqnr_db(*(np.concatenate([np.ravel(value) for value in values]) for values in pair))


def same_class(floats: Sequence[Sequence[Array]], results: Sequence[Sequence[Array]]) -> float | None:
    """Return the share of samples of which results [1, classes] name the same class, of several the least; None without any."""
    shares: list[float] = []
    for place, first in enumerate(floats[0]):
        if np.issubdtype(first.dtype, np.floating) and first.ndim == 2 and first.shape[0] == 1 < first.shape[1]:
            pairs = zip(floats, results, strict=True)
            shares.append(float(np.mean([real[place].argmax() == made[place].argmax() for real, made in pairs])))
    return min(shares, default=None)


def _scores(probabilities: Array, axis: int) -> Array:
    """Return what a softmax made these of, but for the number that it leaves out of account: their mean is 0 here."""
    scores = np.log(np.maximum(probabilities.astype(np.float64), _MIN_PROBABILITY))
    return scores - scores.mean(axis=axis, keepdims=True)
