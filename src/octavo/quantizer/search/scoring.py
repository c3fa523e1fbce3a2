"""How good a candidate is: what the user's function says, and how far its outputs are from the float model's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import QuantizationError, brief
from ...ir.graph.inputs import input_specs
from ...ir.graph.model import Model
from ...numerics.arrays import Array
from ...runtime.executable import Executable

Evaluate = Callable[[Executable], float]
_MIN_PROBABILITY = 1e-7


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """How good a candidate is.

    Parameters
    ----------
    metric
        What the user's function returns; without one, the share of samples of which the first output names the float model's
        class, or, where outputs are no scores of classes, 1 less the error's share of the worst output's power.
    divergence
        Kullback-Leibler divergence of its classes from the float model's in nats, averaged over the samples, or the error's share
        of the worst output's power.
    sqnr_db
        Signal to noise ratio of the worst output on the samples, in dB; inf of equal ones.
    ranks_by_metric
        Whether a greater metric is better however large the divergence is: the user's is. Agreement on a few samples is a worse
        judge of two candidates than their divergence.
    """

    metric: float
    divergence: float
    sqnr_db: float
    ranks_by_metric: bool

    @property
    def rank(self) -> tuple[float, float]:
        """Greater for the better one."""
        return (self.metric if self.ranks_by_metric else 0.0), -self.divergence


class Scorer:
    """Compares executables of one model with the float one.

    Parameters
    ----------
    model, executable
        The float model, and what it compiles to.
    samples
        Its inputs, sample by sample; one at least.
    evaluate
        The user's function; greater is better.
    float_metric
        What it said of the float model, where that is known.
    """

    def __init__(
        self,
        model: Model,
        executable: Executable,
        samples: Sequence[Sequence[Array]],
        evaluate: Evaluate | None,
        float_metric: float | None = None,
    ) -> None:
        self._names = [spec.source_name for spec in input_specs(model)]
        self._samples = samples
        self._evaluate = evaluate
        self._float = self._outputs(executable)
        self._are_classes = len(self._float) == 1 and self._float[0].ndim == 2 and self._float[0].shape[1] > 1
        if float_metric is None:
            float_metric = 1.0 if evaluate is None else _checked(evaluate(executable))
        self.float_metric = float_metric

    def score(self, executable: Executable) -> Score:
        """Return how good an executable is."""
        outputs = self._outputs(executable)
        share = _error_share(self._float, outputs)
        own, divergence = _agreement(self._float[0], outputs[0]) if self._are_classes else (1 - share, share)
        metric = own if self._evaluate is None else _checked(self._evaluate(executable))
        sqnr_db = -10 * math.log10(share) if 0 < share < math.inf else -math.inf if share else math.inf
        return Score(metric=metric, divergence=divergence, sqnr_db=sqnr_db, ranks_by_metric=self._evaluate is not None)

    def _outputs(self, executable: Executable) -> list[Array]:
        """Return each output of all samples, [samples, ...]."""
        runs = [list(executable(dict(zip(self._names, arrays, strict=True))).values()) for arrays in self._samples]
        return [np.concatenate([np.atleast_1d(run[place]) for run in runs]) for place in range(len(runs[0]))]


def _checked(value: Any) -> float:
    try:
        number = float(value)  # of arrays and tensors of one element, too
    except (TypeError, ValueError):
        raise QuantizationError(
            f"evaluate must return one number, greater for a better model; it returned {brief(value)}"
        ) from None
    if not math.isfinite(number):
        raise QuantizationError(f"evaluate must return a finite number, greater for a better model; it returned {number}")
    return number


def _agreement(expected: Array, values: Array) -> tuple[float, float]:
    """Return the share of rows with the same class, and the Kullback-Leibler divergence of the rows' probabilities."""
    same = expected.argmax(axis=1) == values.argmax(axis=1)
    p, q = _probabilities(expected), _probabilities(values)
    return float(same.mean()), float(np.mean(np.sum(p * (np.log(p) - np.log(q)), axis=1)))


def _probabilities(scores: Array) -> Array:
    """Return scores as probabilities: they may be, or be what softmax makes such of."""
    scores = scores.astype(np.float64)
    if scores.min() < 0 or np.abs(scores.sum(axis=1) - 1).max() > 0.05:
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    scores = np.maximum(scores, _MIN_PROBABILITY)
    return scores / scores.sum(axis=1, keepdims=True)


def _error_share(expected: Sequence[Array], values: Sequence[Array]) -> float:
    shares = [0.0]
    for a, b in zip(expected, values, strict=True):
        if a.dtype.kind == "f":
            error, power = np.square(a.astype(np.float64) - b).sum(), np.square(a, dtype=np.float64).sum()
            shares.append(float(error / power) if power else float(error > 0))
    return max(math.inf if math.isnan(share) else share for share in shares)
