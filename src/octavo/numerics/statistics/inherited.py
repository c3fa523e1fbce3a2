"""Weights that make up for what is wrong with a layer's inputs already: regularized least squares on a few samples. No graph.

A layer reads what the layers before it rounded. Part of that error goes with what the layer reads, and its weights can take it
back: those that leave least of the exact results differ from the exact weights (Frantar and Alistarh, Optimal Brain Compression,
2022, section 4, corrects so, layer by layer). Plain least squares would learn the samples by heart. How much weights may change
is what one half of the samples says of the other one, and they stay where that gains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .covariance import CovarianceSums, SampleSums, across_groups, sums_of

Floats = npt.NDArray[np.float64]

PENALTIES = (0.03, 0.3, 3.0)
"""Of a change of a weight, as a multiple of its input's variance: what is tried."""
_MANTISSA = 53
"""Bits of a float64."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleErrors:
    """What samples add: sums of their inputs, of exact results, (groups, outputs), and of their products with inputs."""

    inputs: SampleSums
    total: Floats
    product: Floats


class InheritedErrors:
    """Sums over samples of what a layer's exact weights make of its inputs, against what it should give.

    They depend on no order of positions, and so on no CPU's: results are rounded to a power of two with which sums are exact.

    Parameters
    ----------
    weight
        (groups, outputs, inputs): exact, in units of the results for one of an integer.
    first
        The inputs of the first sample, integers (groups, positions, inputs): not added, see CovarianceSums.
    """

    def __init__(self, weight: Floats, first: npt.NDArray[np.generic]) -> None:
        self._weight = weight
        self._halves = (_Half(weight, first), _Half(weight, first))
        self._samples = 0

    def of(self, inputs: npt.NDArray[np.generic], exact: npt.NDArray[np.floating[Any]]) -> tuple[SampleErrors, ...]:
        """Return what samples add, half by half: every other one is of the second. Several threads may ask.

        Parameters
        ----------
        inputs
            (samples, groups, positions, inputs).
        exact
            Their exact results, (samples, groups, positions, outputs).
        """
        values, peak = self._halves[0].inputs.centred(inputs)
        return tuple(_errors(values[each::2], peak, exact[each::2]) for each in range(min(len(values), 2)))

    def add(self, some: tuple[SampleErrors, ...]) -> None:
        """Add samples: an even number of them, but the last ones."""
        for half, errors in zip(self._halves, some, strict=False):
            half.add(errors)
            self._samples += errors.inputs.samples

    def covariances(self) -> CovarianceSums:
        """Return what all samples say of the inputs alone."""
        return self._halves[0].inputs.with_more(self._halves[1].inputs)

    def made_up_for(self) -> Floats:
        """Return the weights that make up for the errors on other samples, too: the exact ones where none do."""
        if self._samples < 2:
            return self._weight
        first, second = (each.covariances() for each in self._halves)
        gains = [_gain(_change(*first, penalty), *second) + _gain(_change(*second, penalty), *first) for penalty in PENALTIES]
        if max(gains) <= 0:
            return self._weight
        counts = [each.inputs.positions for each in self._halves]
        product = (counts[0] * first[1] + counts[1] * second[1]) / sum(counts)
        return self._weight + _change(self.covariances().plain(), product, PENALTIES[int(np.argmax(gains))])


class _Half:
    """Some of the samples."""

    def __init__(self, weight: Floats, first: npt.NDArray[np.generic]) -> None:
        self.inputs = CovarianceSums(first)
        self._weight = weight
        self._exact: Floats = np.zeros(weight.shape[:2])
        self._product: Floats = np.zeros(weight.shape)

    def add(self, some: SampleErrors) -> None:
        self.inputs.add(some.inputs)
        self._exact += some.total
        self._product += some.product

    def covariances(self) -> tuple[Floats, Floats]:
        """Return those of the inputs, (groups, inputs, inputs), and of errors and inputs, (groups, outputs, inputs)."""
        inputs, mean = self.inputs.plain(), self._exact / self.inputs.positions
        exact = self._product / self.inputs.positions - mean[:, :, np.newaxis] * self.inputs.mean[:, np.newaxis, :]
        return inputs, exact - self._weight @ inputs


def _errors(values: npt.NDArray[np.float32], peak: float, exact: npt.NDArray[np.floating[Any]]) -> SampleErrors:
    """Return what samples of one half add: whole numbers (samples, groups, positions, inputs), and their exact results."""
    multiples, exponent = _multiples(exact, peak * values.shape[0] * values.shape[2])
    return SampleErrors(
        sums_of(values, peak), np.ldexp(multiples.sum(axis=(0, 2)), exponent), np.ldexp(_product(multiples, values), exponent)
    )


def _product(multiples: Floats, values: npt.NDArray[np.float32]) -> Floats:
    """Return the sums over samples and positions of results (.., outputs) times inputs, (groups, outputs, inputs)."""
    across = across_groups(values)
    if across is not None and multiples.shape[3] == 1:
        return np.einsum("spig,spg->gi", across, multiples[..., 0].transpose(0, 2, 1))[:, np.newaxis]
    results, inputs = (
        each.transpose(1, 0, 2, 3).reshape(each.shape[1], -1, each.shape[3]) for each in (multiples, values.astype(np.float64))
    )
    return results.transpose(0, 2, 1) @ inputs


def _multiples(exact: npt.NDArray[np.floating[Any]], peak: float) -> tuple[Floats, int]:
    """Return results as whole multiples of a power of two, and its exponent: sums of peak times these are exact in float64."""
    largest = max(-float(exact.min(initial=0.0)), float(exact.max(initial=0.0)))
    exponent = int(np.frexp(largest)[1]) + int(np.frexp(peak)[1]) - _MANTISSA
    # In two steps, for a power of its own may be beyond float64's.
    found = np.multiply(exact, 2.0 ** -(exponent // 2), dtype=np.float64)
    found *= 2.0 ** (exponent // 2 - exponent)
    return np.rint(found, out=found), exponent


def _change(inputs: Floats, product: Floats, penalty: float) -> Floats:
    """Return the change of weights that leaves least of the error and of `penalty` times its own power."""
    variances = np.diagonal(inputs, axis1=1, axis2=2)
    # What never varies has no part in any error: a change of its weight is 0 by any positive diagonal.
    diagonal = np.where(variances > 0, penalty * variances, 1.0)
    matrix = inputs + diagonal[:, :, np.newaxis] * np.eye(inputs.shape[1])
    return np.linalg.solve(matrix, product.transpose(0, 2, 1)).transpose(0, 2, 1)


def _gain(change: Floats, inputs: Floats, product: Floats) -> float:
    """Return how much less power the errors of samples have with weights changed so."""
    return float(np.sum(change * (2 * product - change @ inputs)))
