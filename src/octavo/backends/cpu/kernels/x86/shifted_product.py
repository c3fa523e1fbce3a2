"""One level of Strassen's product of integers none of which is negative, in shares small enough for the adders of floats.

What the shifts of the operands add to its results is known: a constant, and sums of the inputs times constants. See `float_sums`.
Plain numbers, no TIR.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .block_product import STRASSEN_FORM
from .point_plan import MAX_INPUT

LIMIT = 1 << 24
"""The largest integer up to which the numbers of float32 whose bits are integers are as far apart as these."""

SHARE_CYCLES, BEYOND_CYCLES = 25.0, 1.5
"""Of a group of tiles: to begin a share and to end it; of a step whose sums integers' adders take. Measured on a Zen 4."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ShiftedProduct:
    """One level of Strassen's product whose operands are shifted to where none is negative.

    Parameters
    ----------
    input_shifts, weight_shifts
        What is added to the operands of each of the seven products.
    shares
        Of each point the steps, pairs of input channels, of a share of its sums, and those that stay in [0; 2**24]: int32
        (points, 2).
    constants, input_factors
        What the results lack: int64 (blocks of the result, channels of a block), and the sums of each block of inputs times int64
        (blocks of the result, blocks of inputs).
    """

    input_shifts: tuple[int, ...]
    weight_shifts: tuple[int, ...]
    shares: npt.NDArray[np.int32]
    constants: npt.NDArray[np.int64]
    input_factors: npt.NDArray[np.int64]

    @staticmethod
    def of(centered: npt.NDArray[np.integer]) -> ShiftedProduct:
        """Return it for weights less their zero points, (inputs, outputs) of even sizes, that are `exact_shifted`.

        With S, T the operands of a product over K channels, s, t their shifts:
        sum(S * T) = sum((S + s) * (T + t)) - t * sum(S) - s * (sum(T) + K * t).
        """
        points = _Points.of(centered)
        return ShiftedProduct(
            input_shifts=tuple(map(int, INPUT_SHIFTS)),
            weight_shifts=tuple(map(int, points.shifts)),
            shares=np.array([_shares(point) for point in points.products()], np.int32),
            constants=points.constants,
            input_factors=points.input_factors,
        )


INPUT_SHIFTS = MAX_INPUT * np.maximum(-STRASSEN_FORM.left_rows, 0).sum(axis=1)
LARGEST_INPUTS = MAX_INPUT * np.abs(STRASSEN_FORM.left_rows).sum(axis=1)
"""Of each point, what is added to inputs, and the largest that they are then."""


def exact_shifted(centered: npt.NDArray[np.integer]) -> bool:
    """Whether two products stay within LIMIT, and all sums on the way within int32; weights are those of `ShiftedProduct.of`."""
    points = _Points.of(centered)
    pair = 2 * LARGEST_INPUTS * (points.weights.max(axis=(1, 2)) + points.shifts)
    totals = LARGEST_INPUTS[:, None] * (points.weights.sum(axis=1) + points.inputs * points.shifts[:, None])
    most = np.abs(STRASSEN_FORM.product_rows) @ totals + np.abs(points.constants)
    most += (np.abs(points.input_factors).sum(axis=1) * MAX_INPUT * points.inputs)[:, None]
    return int(pair.max()) <= LIMIT and int(most.max()) < 1 << 31


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Points:
    """What the seven products take of the weights, int64 (points, inputs of a block, outputs of a block), and their shifts."""

    weights: npt.NDArray[np.int64]
    shifts: npt.NDArray[np.int64]

    @staticmethod
    def of(centered: npt.NDArray[np.integer]) -> _Points:
        blocks = [half for rows in np.split(centered.astype(np.int64), 2) for half in np.split(rows, 2, axis=1)]
        weights = np.stack(STRASSEN_FORM.right(*blocks))
        return _Points(weights=weights, shifts=np.maximum(-weights.min(axis=(1, 2)), 0))

    @property
    def inputs(self) -> int:
        return self.weights.shape[1]

    @property
    def constants(self) -> npt.NDArray[np.int64]:
        sums = self.weights.sum(axis=1) + self.inputs * self.shifts[:, None]
        return -STRASSEN_FORM.product_rows @ (INPUT_SHIFTS[:, None] * sums)

    @property
    def input_factors(self) -> npt.NDArray[np.int64]:
        return -STRASSEN_FORM.product_rows @ (self.shifts[:, None] * STRASSEN_FORM.left_rows)

    def products(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield of each point the most that a step can add to each channel, (steps, outputs)."""
        for weights, shift, inputs in zip(self.weights, self.shifts, LARGEST_INPUTS, strict=True):
            yield (weights[::2] + weights[1::2] + 2 * shift) * inputs


def _shares(products: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Return the steps of a share of a sum, and how many of them stay within LIMIT; `products` is (steps, channels).

    Each share takes some time to begin and to end, and so does each step beyond the limit: there may be one share less than
    would stay within it, or one more.
    """
    steps = len(products)
    sums = np.concatenate([np.zeros_like(products[:1]), np.cumsum(products, axis=0)])
    fewest = -(-int(sums[-1].max()) // LIMIT)
    found: list[tuple[float, int, int]] = []
    for shares in range(max(1, fewest - 1), min(fewest + 1, steps) + 1):
        size = -(-steps // shares)
        small = min(_steps_within(sums[first : first + size + 1], size) for first in range(0, steps, size))
        cycles = shares * (SHARE_CYCLES + (size - small) * BEYOND_CYCLES)
        found.append((cycles, size, small))
    return min(found)[1:]


def _steps_within(sums: npt.NDArray[np.int64], most: int) -> int:
    """Return of how many first steps the products stay within LIMIT, `most` for all; `sums` are before each, and at the end."""
    within = int(np.searchsorted((sums - sums[0]).max(axis=1), LIMIT, side="right")) - 1
    return within if within < len(sums) - 1 else most
