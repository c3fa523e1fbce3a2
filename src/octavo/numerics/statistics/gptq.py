"""Rounding weights so that a layer's sums change least: GPTQ's sweep, then coordinate descent. NumPy only; it knows no graph.

Frantar, Ashkboos, Hoefler and Alistarh, GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers, 2023:
weights are rounded one after the other, and what is left of each error goes to those that come behind it, as far as inputs that
vary together let them make up for it. The sweep never looks back, so single integers then
move by 1 wherever the error becomes less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

DAMPING = 0.01
"""Share of the mean diagonal that is added to it: keeps the inverse sane where inputs hardly vary, as in the paper."""

_BLOCK = 128
"""Inputs whose errors are spread together, so that most of the work is products of matrices."""

_PASSES = 3
"""Of moving integers by 1 behind the sweep, over all inputs: it ends where none moves any more."""


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
    layer = _Layer.of(weight, gram)
    return layer.placed(layer.polished(layer.swept(scale, qmin, qmax), scale, qmin, qmax))


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """Weights and the covariance of their inputs, those that vary most first; the triangle says what makes up for what."""

    weight: Floats
    gram: Floats
    upper: Floats
    order: npt.NDArray[np.intp]

    @staticmethod
    def of(weight: Floats, gram: Floats) -> _Layer:
        inputs = weight.shape[2]
        diagonal = np.diagonal(gram, axis1=1, axis2=2)
        mean = diagonal.mean(axis=1)
        # The largest first: their errors are spread over most others.
        order = np.argsort(-diagonal, axis=1, kind="stable")
        sorted_gram = np.take_along_axis(np.take_along_axis(gram, order[:, :, None], axis=1), order[:, None, :], axis=2)
        # Inputs that never vary leave nothing to be made up for: any positive diagonal gives rounding to nearest.
        sorted_gram[:, np.arange(inputs), np.arange(inputs)] += np.where(mean > 0, DAMPING * mean, 1.0)[:, None]
        upper = np.linalg.cholesky(np.linalg.inv(sorted_gram)).transpose(0, 2, 1)
        return _Layer(np.take_along_axis(weight, order[:, None, :], axis=2), sorted_gram, upper, order)

    def swept(self, scale: Floats, qmin: int, qmax: int) -> Floats:
        """Return integers, rounded one input after the other."""
        left = self.weight.copy()
        inputs, upper = left.shape[2], self.upper
        rounded: Any = np.empty_like(left)
        for start in range(0, inputs, _BLOCK):
            end = min(start + _BLOCK, inputs)
            errors = np.empty((*left.shape[:2], end - start))
            for index in range(start, end):
                column = np.clip(np.rint(left[:, :, index] / scale), qmin, qmax)
                rounded[:, :, index] = column
                error = (left[:, :, index] - column * scale) / upper[:, index, index, None]
                left[:, :, index + 1 : end] -= error[:, :, None] * upper[:, None, index, index + 1 : end]
                errors[:, :, index - start] = error
            if end < inputs:
                left[:, :, end:] -= errors @ upper[:, start:end, end:]
        return rounded

    def polished(self, integers: Floats, scale: Floats, qmin: int, qmax: int) -> Floats:
        """Return integers of which some are moved by 1: one input after the other, wherever the error becomes less."""
        rounded, inputs = integers.copy(), integers.shape[2]
        for _ in range(_PASSES):
            slope = (rounded * scale[:, :, None] - self.weight) @ self.gram  # half the error's, by each weight
            before = rounded.copy()
            for start in range(0, inputs, _BLOCK):
                end = min(start + _BLOCK, inputs)
                for index in range(start, end):
                    curvature = self.gram[:, index, index, None] * scale
                    wanted = np.clip(np.rint(-slope[:, :, index] / curvature), -1, 1)
                    moved = np.clip(rounded[:, :, index] + wanted, qmin, qmax)
                    change = (moved - rounded[:, :, index]) * scale
                    rounded[:, :, index] = moved
                    slope[:, :, index + 1 : end] += change[:, :, None] * self.gram[:, None, index, index + 1 : end]
                if end < inputs:
                    change = (rounded[:, :, start:end] - before[:, :, start:end]) * scale[:, :, None]
                    slope[:, :, end:] += change @ self.gram[:, start:end, end:]
            if np.array_equal(before, rounded):
                break
        return rounded

    def placed(self, integers: Floats) -> npt.NDArray[np.int64]:
        """Return integers in the order in which the weights were given."""
        result = np.empty(integers.shape, np.int64)
        np.put_along_axis(result, self.order[:, None, :], integers.astype(np.int64), axis=2)
        return result
