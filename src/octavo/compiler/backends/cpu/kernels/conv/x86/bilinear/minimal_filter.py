"""Minimal filtering (Winograd): the matrices that give several neighbouring outputs of one axis of a convolution by few products.

    output_rows @ ((weight_rows @ w) * (input_rows @ x)) == factor * [sum(w[t] * x[o * stride + t] for t) for o in range(outputs)]

holds for integers, and so modulo 2**32 as well. It is the Toom-Cook algorithm, transposed: polynomials are multiplied by their
values at some points (S. Winograd, Arithmetic Complexity of Computations, 1980, chapter 5). Long filters, and those of
stride 2, are several side by side, whose products add up. Plain numbers, no TIR.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Rows = tuple[tuple[int, ...], ...]

_POINTS = ((1, 1), (-1, 1), (2, 1), (-2, 1), (1, 2), (-1, 2))
"""Numerators and denominators, in pairs: the smaller they are, the smaller the transforms' integers. Before them may come 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MinimalFilter:
    """One axis of a tile.

    Parameters
    ----------
    outputs, taps, stride
        Of a tile, and of the convolution.
    input_rows, weight_rows, output_rows
        Matrices of integers, by rows: (points, inputs), (points, taps), (outputs, points). There is one product for each point.
    factor
        By how much the outputs are too large.
    """

    outputs: int
    taps: int
    stride: int = 1
    input_rows: Rows
    weight_rows: Rows
    output_rows: Rows
    factor: int = 1

    @property
    def points(self) -> int:
        """Products of a tile."""
        return len(self.input_rows)

    @property
    def inputs(self) -> int:
        """Inputs of a tile."""
        return (self.outputs - 1) * self.stride + self.taps

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Neighbouring points of which one takes the sum, the other the difference of the same two parts of the inputs."""
        found: list[tuple[int, int]] = []
        columns = list(zip(*self.output_rows, strict=True))
        for first in range(self.points - 1):
            is_free = not found or found[-1][1] < first
            if is_free and all(_differ_in_sign(rows[first], rows[first + 1]) for rows in (self.input_rows, columns)):
                found.append((first, first + 1))
        return found

    @staticmethod
    @cache
    def of(outputs: int, taps: int) -> MinimalFilter:
        """Return the matrices of a tile of `outputs` with the fewest products; those of one tap are products of each input."""
        finite = outputs + taps - 2
        if taps == 1:
            identity = tuple(tuple(int(row == column) for column in range(outputs)) for row in range(outputs))
            return MinimalFilter(
                outputs=outputs, taps=1, input_rows=identity, weight_rows=((1,),) * outputs, output_rows=identity
            )
        points = [*([(0, 1)] if finite % 2 else []), *_POINTS[: finite - finite % 2], (1, 0)]
        assert len(points) == finite + 1, f"{outputs} outputs of {taps} taps take more points than are known"
        norms = [
            math.prod(d * a - n * b for place, (n, d) in enumerate(points) if place != own) for own, (a, b) in enumerate(points)
        ]
        factor = math.lcm(*norms)
        columns = [
            [factor // norm * a**power * b ** (outputs - 1 - power) for power in range(outputs)]
            for (a, b), norm in zip(points, norms, strict=True)
        ]
        return MinimalFilter(
            outputs=outputs,
            taps=taps,
            input_rows=tuple(_product([other for other in points if other != own]) for own in points),
            weight_rows=tuple(tuple(a**power * b ** (taps - 1 - power) for power in range(taps)) for a, b in points),
            output_rows=tuple(zip(*columns, strict=True)),
            factor=factor,
        )

    @staticmethod
    @cache
    def split(outputs: int, taps: tuple[int, ...]) -> MinimalFilter:
        """Return a filter of sum(taps) as several of so many neighbouring taps each."""
        firsts = [sum(taps[:part]) for part in range(len(taps))]
        parts = [(MinimalFilter.of(outputs, count), first) for first, count in zip(firsts, taps, strict=True)]
        return _joined(outputs, sum(taps), 1, parts)

    @staticmethod
    @cache
    def strided(outputs: int, taps: int, stride: int) -> MinimalFilter:
        """Return a filter of a stride as one for every remainder of the taps' numbers, on every `stride`-th input."""
        parts = [(MinimalFilter.of(outputs, len(range(first, taps, stride))), first) for first in range(min(stride, taps))]
        return _joined(outputs, taps, stride, parts)


def _joined(outputs: int, taps: int, stride: int, parts: Sequence[tuple[MinimalFilter, int]]) -> MinimalFilter:
    """Return the filter whose outputs are the sums of those of its parts, each with the number of its first input and tap."""
    factor = math.lcm(*(part.factor for part, _ in parts))
    inputs = (outputs - 1) * stride + taps

    def spread(rows: Rows, first: int, size: int) -> list[tuple[int, ...]]:
        places = [range(first, size, stride)[: len(row)] for row in rows]
        return [
            tuple(row[place.index(i)] if i in place else 0 for i in range(size)) for row, place in zip(rows, places, strict=True)
        ]

    return MinimalFilter(
        outputs=outputs,
        taps=taps,
        stride=stride,
        input_rows=tuple(row for part, first in parts for row in spread(part.input_rows, first, inputs)),
        weight_rows=tuple(row for part, first in parts for row in spread(part.weight_rows, first, taps)),
        output_rows=tuple(
            tuple(factor // part.factor * value for part, _ in parts for value in part.output_rows[output])
            for output in range(outputs)
        ),
        factor=factor,
    )


def _differ_in_sign(row: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two rows differ in the signs of some of their numbers, and in nothing else."""
    return row != other and all(abs(a) == abs(b) for a, b in zip(row, other, strict=True))


def _product(points: list[tuple[int, int]]) -> tuple[int, ...]:
    """Return the coefficients of the product of (denominator * x - numerator), lowest power first, one for each point and 1."""
    product = [1] + [0] * len(points)
    for numerator, denominator in points:
        shifted = [0, *product[:-1]]
        product = [denominator * up - numerator * here for up, here in zip(shifted, product, strict=True)]
    return tuple(product)


@dataclass(frozen=True, kw_only=True, slots=True)
class TileTransform:
    """Both axes of a tile of outputs."""

    rows: MinimalFilter
    columns: MinimalFilter

    def __str__(self) -> str:
        """Return rows x columns of outputs, as kernels are named."""
        return f"{self.rows.outputs}x{self.columns.outputs}"

    @property
    def points(self) -> int:
        """Products of a tile."""
        return self.rows.points * self.columns.points

    @property
    def outputs(self) -> int:
        """Outputs of a tile."""
        return self.rows.outputs * self.columns.outputs

    @property
    def shift(self) -> int:
        """How many bits of an int32 sum the transforms use up: the even part of their factors."""
        factor = self.rows.factor * self.columns.factor
        return (factor & -factor).bit_length() - 1

    @property
    def inverse(self) -> int:
        """What brings a sum to 2**shift times itself, modulo 2**32: the inverse of the odd part of the factors, as int32."""
        odd = self.rows.factor * self.columns.factor >> self.shift
        inverse = pow(odd, -1, 1 << 32)
        return inverse - (1 << 32 if inverse >= 1 << 31 else 0)

    @property
    def input_reach(self) -> int:
        """Largest magnitude of a transformed input of one: of products of positive coefficients, or of negative ones."""
        sums = [
            [(sum(c for c in row if c > 0), -sum(c for c in row if c < 0)) for row in axis.input_rows]
            for axis in (self.rows, self.columns)
        ]
        return max(max(p * q + n * m, p * m + n * q) for p, n in sums[0] for q, m in sums[1])

    @property
    def weight_reach(self) -> int:
        """Largest magnitude of a transformed weight of one."""
        rows, columns = (max(sum(map(abs, row)) for row in axis.weight_rows) for axis in (self.rows, self.columns))
        return rows * columns

    def weights(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return weights (kernel_h, kernel_w, inputs, outputs) at each point, (points, inputs, outputs).

        Integers below 2**24, which float32 holds as they are: the product is one of matrices of reals, and exact.
        """
        assert self.weight_reach * int(np.abs(values).max(initial=0)) < 1 << 24, "float32 holds these integers"
        matrix = np.kron(np.array(self.rows.weight_rows), np.array(self.columns.weight_rows)).astype(np.float32)
        points = matrix @ values.reshape(matrix.shape[1], -1).astype(np.float32)
        return points.reshape(-1, *values.shape[2:])
