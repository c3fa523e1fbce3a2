"""How numbers vary together, from few samples of many positions: sums, and what they tell of other samples. It knows no graph."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_EXACT = 2**24
"""Whole numbers up to here are exact in float32, whose products take half the time."""
_MIN_ROWS = 32
"""With fewer rows at once adding up takes longer than that saves."""
_WORTH_ADDING = 2
"""Times as many inputs as rows, at most, whose product is added at once: with fewer rows that takes longer than the product."""

SHRINKAGE = 0.5
"""Of the share that is chance. The whole share gives the least error of the matrix; weights that are rounded by it do best on
other samples with about half, measured on clamped and on linear inputs."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleSums:
    """What samples add: sums, those of squares outside the diagonals of their products, and the sum of these or their rows."""

    samples: int
    positions: int
    peak: float
    total: Floats
    squares: Floats
    product: Floats | None
    waiting: npt.NDArray[np.float32] | None


class CovarianceSums:
    """Sums over samples from which covariances follow, of each group of inputs alone.

    Sums and products of whole numbers are exact in float64 as long as they stay below 2^53, so they depend on no order.

    Parameters
    ----------
    first
        The first sample's rows, (groups, positions, inputs): not added, what is added is taken from whole numbers near its mean.
        Products stay exact, and what single samples differ by shows.
    positions
        How many were added.
    """

    def __init__(self, first: npt.NDArray[np.generic]) -> None:
        groups, _, inputs = first.shape
        self._samples = 0
        self.positions = 0
        self._centre = np.rint(first.mean(axis=1, dtype=np.float64, keepdims=True)).astype(np.float32)
        self._total: Floats = np.zeros((groups, inputs))
        self._product: Floats = np.zeros((groups, inputs, inputs))
        self._squares: Floats = np.zeros(groups)
        self._waiting: list[npt.NDArray[np.float32]] = []
        """Rows whose products are still to be added: of several samples at once, where a few have fewer than inputs."""
        self._waiting_peak = 1.0

    def centred(self, rows: npt.NDArray[np.generic]) -> tuple[npt.NDArray[np.float32], float]:
        """Return samples, (samples, groups, positions, inputs), less the whole numbers that everything is taken from.

        And a bound of what they are then, 1 at least.
        """
        low, high = (float(end(initial=self._centre.flat[0])) for end in (rows.min, rows.max))
        peak = max(high - float(self._centre.min()), float(self._centre.max()) - low, 1.0)
        return rows.astype(np.float32, copy=False) - self._centre, peak

    def of(self, rows: npt.NDArray[np.generic]) -> SampleSums:
        """Return what samples, (samples, groups, positions, inputs), add. Several threads may ask at once."""
        return sums_of(*self.centred(rows))

    def add(self, some: SampleSums) -> None:
        """Add samples, each of as many positions as the others."""
        self._total += some.total
        self._squares += some.squares
        self._samples += some.samples
        self.positions += some.positions
        if some.product is not None:
            self._product += some.product
        if some.waiting is not None:
            self._waiting.append(some.waiting)
            self._waiting_peak = max(self._waiting_peak, some.peak)
            if sum(each.shape[1] for each in self._waiting) >= some.waiting.shape[2]:
                self._add_waiting()

    def with_more(self, others: CovarianceSums) -> CovarianceSums:
        """Return the sums of these and of other samples, both made with the same first one."""
        found = copy(self)
        for each in (self, others):
            each._add_waiting()
        found._samples, found.positions = self._samples + others._samples, self.positions + others.positions
        found._total, found._squares = self._total + others._total, self._squares + others._squares
        found._product, found._waiting = self._product + others._product, []
        return found

    @property
    def mean(self) -> Floats:
        """The mean of the inputs, less the whole numbers, (groups, inputs)."""
        return self._total / self.positions

    def _add_waiting(self) -> None:
        if self._waiting:
            rows = np.concatenate(self._waiting, axis=1)
            self._product += _products(rows[np.newaxis], self._waiting_peak)[0]
            self._waiting, self._waiting_peak = [], 1.0

    def plain(self) -> Floats:
        """Return the covariances of what was added, (groups, inputs, inputs)."""
        self._add_waiting()
        mean = self.mean
        return self._product / self.positions - mean[:, :, np.newaxis] * mean[:, np.newaxis, :]

    def moments(self) -> Floats:
        """Return the mean products of the inputs themselves: `shrunk`, and those of their means."""
        mean = self.mean + self._centre[:, 0]
        return self.shrunk() + mean[:, :, np.newaxis] * mean[:, np.newaxis, :]

    def shrunk(self) -> Floats:
        """Return the covariances that other samples are most likely to have, (groups, inputs, inputs): the variances as they are.

        What two inputs have in common in a few samples they need not have in others. How much samples differ in it says which
        share of its power is chance (Schaefer and Strimmer, A Shrinkage Approach to Large-Scale Covariance Matrix Estimation,
        2005, target D; its draws are whole samples here, since the positions of one are alike). SHRINKAGE of that is taken away.
        """
        found = self.plain()
        if self._samples < 2:
            return found
        spread = self._squares * self._samples - _off_diagonal(self._product)
        chance = spread / (self._samples - 1) / self.positions**2
        share = SHRINKAGE * np.clip(chance / np.maximum(_off_diagonal(found), np.finfo(np.float64).tiny), 0, 1)
        variances = np.diagonal(found, axis1=1, axis2=2).copy()
        found *= (1 - share)[:, np.newaxis, np.newaxis]
        found[:, np.arange(found.shape[1]), np.arange(found.shape[1])] = variances
        return found


def sums_of(values: npt.NDArray[np.float32], peak: float) -> SampleSums:
    """Return what samples of whole numbers in [-peak; peak], (samples, groups, positions, inputs), add to sums of such."""
    samples, groups, positions, inputs = values.shape
    total = _summed(values, peak).sum(axis=0)
    product, waiting = None, None
    if positions < inputs:
        # The squares of X^T X and of X X^T, the smaller one, have the same sum.
        smaller = _products(values.transpose(0, 1, 3, 2), peak)
        own = np.square(values, dtype=np.float64).sum(axis=2)
        squares = np.square(smaller).sum(axis=(2, 3)) - np.square(own).sum(axis=2)
        rows = values.transpose(1, 0, 2, 3).reshape(groups, -1, inputs)
        if _WORTH_ADDING * rows.shape[1] >= inputs:
            product = _products(rows[np.newaxis], peak)[0]
        else:
            waiting = rows
    else:
        products = _products(values, peak)
        squares, product = _off_diagonal(products), products.sum(axis=0)
    return SampleSums(samples, samples * positions, peak, total, squares.sum(axis=0), product, waiting)


def across_groups(values: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Return samples as (samples, positions, inputs, groups) where groups are neighbours, as depthwise channels do; else None."""
    return values.transpose(0, 2, 3, 1) if values.shape[1] > 1 and values.strides[1] == values.itemsize else None


def _summed(values: npt.NDArray[np.float32], peak: float) -> Floats:
    """Return the sums of whole numbers over the positions of each sample, in float32 where that is exact."""
    is_exact = peak * values.shape[2] <= _EXACT
    return values.sum(axis=2, dtype=np.float32 if is_exact else np.float64).astype(np.float64)


def _products(values: npt.NDArray[np.float32], peak: float) -> Floats:
    """Return X^T X of whole numbers (samples, groups, positions, inputs), exact as long as it stays below 2^53."""
    rows = int(_EXACT // peak**2)
    if rows < _MIN_ROWS:
        return _squared(values.astype(np.float64))
    samples, groups, positions, inputs = values.shape
    if positions <= rows:
        return _squared(values).astype(np.float64)
    found: Floats = np.zeros((samples, groups, inputs, inputs))
    for start in range(0, positions, rows):
        found += _squared(values[:, :, start : start + rows])
    return found


def _squared(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    samples, groups, _, inputs = values.shape
    across = across_groups(values)
    if across is None:  # as matrices: NumPy then computes half of each symmetric product
        found = np.empty((samples, groups, inputs, inputs), values.dtype)
        for sample, group in np.ndindex(samples, groups):
            matrix = values[sample, group]
            found[sample, group] = matrix.T @ matrix
        return found
    # All groups at once, for one pair of inputs after the other.
    by_pair = np.empty((samples, inputs, inputs, groups), values.dtype)
    for each in range(inputs):
        by_pair[:, each, each:] = np.einsum("spig,spg->sig", across[:, :, each:], across[:, :, each])
        by_pair[:, each:, each] = by_pair[:, each, each:]
    return by_pair.transpose(0, 3, 1, 2)


def _off_diagonal(matrices: Floats) -> Floats:
    """Return the sum of squares outside the diagonal of each of the last two axes' matrices."""
    diagonals = np.diagonal(matrices, axis1=-2, axis2=-1)
    return np.square(matrices).sum(axis=(-2, -1)) - np.square(diagonals).sum(axis=-1)
