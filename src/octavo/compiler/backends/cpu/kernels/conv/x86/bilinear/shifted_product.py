"""One level of Strassen's product of integers none of which is negative, in spans short enough for the adders of floats.

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

SPAN_CYCLES, BEYOND_CYCLES = 25.0, 1.5
"""Of a group of tiles: to begin a span and to end it; of a step whose sums integers' adders take. Measured on a Zen 4."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ShiftedProduct:
    """What a kernel makes of its weights.

    Parameters
    ----------
    input_shifts, weight_shifts
        What is added to the operands of each of the seven products.
    spans
        Of each point the steps, pairs of input channels, of a span of its sums, and those of them that stay in [0; 2**24]: int32
        (points, 2).
    constants, input_factors
        What the results lack: int64 (blocks of the result, channels of a block), and the sums of each block of inputs times int64
        (blocks of the result, blocks of inputs).
    """

    input_shifts: tuple[int, ...]
    weight_shifts: tuple[int, ...]
    spans: npt.NDArray[np.int32]
    constants: npt.NDArray[np.int64]
    input_factors: npt.NDArray[np.int64]

    @staticmethod
    def of(centered: npt.NDArray[np.integer]) -> ShiftedProduct:
        """Return it for weights less their zero points, (inputs, outputs) of even sizes, in [-255; 255].

        With S, T the operands of a product over K channels, s, t their shifts:
        sum(S * T) = sum((S + s) * (T + t)) - t * sum(S) - s * (sum(T) + K * t).
        """
        points = _Points.of(centered)
        return ShiftedProduct(
            input_shifts=tuple(map(int, INPUT_SHIFTS)),
            weight_shifts=tuple(map(int, points.shifts)),
            spans=np.array([_spans(point) for point in points.products()], np.int32),
            constants=points.constants,
            input_factors=points.input_factors,
        )


INPUT_SHIFTS = MAX_INPUT * np.maximum(-STRASSEN_FORM.left_rows, 0).sum(axis=1)
LARGEST_INPUTS = MAX_INPUT * np.abs(STRASSEN_FORM.left_rows).sum(axis=1)
"""Of each point, what is added to inputs, and the largest that they are then. Two products of the largest stay within LIMIT."""


def fits_int32(centered: npt.NDArray[np.integer], bias: npt.NDArray[np.int32]) -> bool:
    """Whether all sums on the way stay within int32; weights are those of `ShiftedProduct.of`, `bias` is that of the outputs."""
    points = _Points.of(centered)
    totals = LARGEST_INPUTS[:, None] * points.totals
    most = np.abs(STRASSEN_FORM.product_rows) @ totals + np.abs(points.constants)
    most += (np.abs(points.input_factors).sum(axis=1) * MAX_INPUT * points.inputs)[:, None]
    return int(most.max()) + int(np.abs(bias.astype(np.int64)).max()) < 1 << 31


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Points:
    """What the seven products take of the weights, int16 (points, inputs of a block, outputs of a block), and their shifts."""

    weights: npt.NDArray[np.int16]
    shifts: npt.NDArray[np.int64]

    @staticmethod
    def of(centered: npt.NDArray[np.integer]) -> _Points:
        blocks = [half for rows in np.split(centered.astype(np.int16), 2) for half in np.split(rows, 2, axis=1)]
        weights = np.stack(STRASSEN_FORM.right(*blocks))
        return _Points(weights=weights, shifts=np.maximum(-weights.min(axis=(1, 2)).astype(np.int64), 0))

    @property
    def inputs(self) -> int:
        return self.weights.shape[1]

    @property
    def totals(self) -> npt.NDArray[np.int64]:
        """Sums of the shifted weights, (points, outputs of a block)."""
        return self.weights.sum(axis=1, dtype=np.int64) + self.inputs * self.shifts[:, None]

    @property
    def constants(self) -> npt.NDArray[np.int64]:
        return -STRASSEN_FORM.product_rows @ (INPUT_SHIFTS[:, None] * self.totals)

    @property
    def input_factors(self) -> npt.NDArray[np.int64]:
        return -STRASSEN_FORM.product_rows @ (self.shifts[:, None] * STRASSEN_FORM.left_rows)

    def products(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield of each point the most that a step can add to each channel, (steps, outputs)."""
        for weights, shift, inputs in zip(self.weights, self.shifts, LARGEST_INPUTS, strict=True):
            yield (weights[::2].astype(np.int64) + weights[1::2] + 2 * shift) * inputs


def _spans(products: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Return the steps of a span of a sum, and how many of them stay within LIMIT; `products` is (steps, channels).

    Each span takes some time to begin and to end, and so does each step beyond the limit: there may be one span less than
    would stay within it, or one more.
    """
    steps = len(products)
    sums = np.concatenate([np.zeros_like(products[:1]), np.cumsum(products, axis=0)])
    fewest = -(-int(sums[-1].max()) // LIMIT)
    found: list[tuple[float, int, int]] = []
    for spans in range(max(1, fewest - 1), min(fewest + 1, steps) + 1):
        size = -(-steps // spans)
        small = min(_steps_within(sums[first : first + size + 1], size) for first in range(0, steps, size))
        cycles = spans * (SPAN_CYCLES + (size - small) * BEYOND_CYCLES)
        found.append((cycles, size, small))
    return min(found)[1:]


def _steps_within(sums: npt.NDArray[np.int64], most: int) -> int:
    """Return of how many first steps the products stay within LIMIT, `most` for all; `sums` are before each, and at the end."""
    within = int(np.searchsorted((sums - sums[0]).max(axis=1), LIMIT, side="right")) - 1
    return within if within < len(sums) - 1 else most
