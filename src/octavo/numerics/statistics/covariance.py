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

SHRINKAGE = 0.5
"""Of the share that is chance. The whole share gives the least error of the matrix; weights that are rounded by it do best on
other samples with about half, measured on clamped and on linear inputs."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleSums:
    """What one sample adds: sums, the sum of squares outside the diagonal of its product, and that or the rows it is made of."""

    total: Floats
    squares: Floats
    positions: int
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
        """Rows whose products are still to be added: of several samples at once, where one has fewer than inputs."""

    def centred(self, rows: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
        """Return a sample less the whole numbers that everything is taken from."""
        return rows.astype(np.float32) - self._centre

    def of(self, rows: npt.NDArray[np.generic]) -> SampleSums:
        """Return what a sample, (groups, positions, inputs), adds. Several threads may ask at once."""
        values = self.centred(rows)
        total, positions = _summed(values), values.shape[1]
        if positions < values.shape[2]:
            # The squares of X^T X and of X X^T, the smaller one, have the same sum.
            wide = values.astype(np.float64)
            sum_of_squares = np.square(wide @ wide.transpose(0, 2, 1)).sum(axis=(1, 2))
            squares = sum_of_squares - np.square(np.square(wide).sum(axis=1)).sum(axis=1)
            return SampleSums(total, squares, positions, None, values)
        product = _product(values)
        return SampleSums(total, _off_diagonal(product), positions, product, None)

    def add(self, sample: SampleSums) -> None:
        """Add a sample, of as many positions as the others."""
        self._total += sample.total
        self._squares += sample.squares
        self._samples += 1
        self.positions += sample.positions
        if sample.product is not None:
            self._product += sample.product
        if sample.waiting is not None:
            self._waiting.append(sample.waiting)
            if sum(each.shape[1] for each in self._waiting) >= sample.waiting.shape[2]:
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
            self._product += _product(np.concatenate(self._waiting, axis=1))
            self._waiting = []

    def plain(self) -> Floats:
        """Return the covariances of what was added, (groups, inputs, inputs)."""
        self._add_waiting()
        mean = self.mean
        return self._product / self.positions - mean[:, :, np.newaxis] * mean[:, np.newaxis, :]

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


def _peak(values: npt.NDArray[np.float32]) -> float:
    return max(-float(values.min(initial=0.0)), float(values.max(initial=0.0)), 1.0)


def _summed(values: npt.NDArray[np.float32]) -> Floats:
    """Return the sums of whole numbers over positions, in float32 where that is exact."""
    is_exact = _peak(values) * values.shape[1] <= _EXACT
    return values.sum(axis=1, dtype=np.float32 if is_exact else np.float64).astype(np.float64)


def _product(values: npt.NDArray[np.float32]) -> Floats:
    """Return X^T X of the whole numbers (groups, positions, inputs), exact as long as it stays below 2^53."""
    rows = int(_EXACT // _peak(values) ** 2)
    if rows < _MIN_ROWS:
        return _squared(values.astype(np.float64))
    found: Floats = np.zeros((values.shape[0], values.shape[2], values.shape[2]))
    for start in range(0, values.shape[1], rows):
        found += _squared(values[:, start : start + rows])
    return found


def _squared(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    groups, _, inputs = values.shape
    if groups == 1:  # as matrices: NumPy then computes half of the symmetric product
        return (values[0].T @ values[0])[np.newaxis]
    if values.strides[0] != values.itemsize:
        return values.transpose(0, 2, 1) @ values
    # Groups lie side by side, as channels of a depthwise layer do: all of them at once, for one pair of inputs after the other.
    across = values.transpose(1, 2, 0)
    found = np.empty((inputs, inputs, groups), values.dtype)
    for each in range(inputs):
        found[each, each:] = found[each:, each] = np.einsum("pig,pg->ig", across[:, each:], across[:, each])
    return found.transpose(2, 0, 1)


def _off_diagonal(matrices: Floats) -> Floats:
    """Return the sum of squares outside the diagonal of each matrix."""
    return np.square(matrices).sum(axis=(1, 2)) - np.square(np.diagonal(matrices, axis1=1, axis2=2)).sum(axis=1)
