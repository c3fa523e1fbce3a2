"""Some rows of an attention's scores, which become exponentials, and their softmax or its integers, between its two products."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from tvm.script.ir_builder import tirx as T

from ......numerics.dynamic import PER_ROW, style_bounds
from ......runtime.size import dimension
from ..language.rounding import run_time_rounded
from ..language.vectors import Buffer, Expr, across_lanes, load, splat, store
from ..norms.float_softmax import exponential
from ..quantization.dynamic import MAGNITUDE_BITS, parameters_of
from ..quantization.quantize import QuantizeSpec, quantized_vector
from .batch_product import LANES
from .masked_columns import CHUNK

_PITCH = CHUNK
"""Bytes that a row of integers is a multiple of, so that its sum is one of whole vectors."""

Range = tuple[Expr, Expr]
"""Of chunks of columns: the first one that counts, and the first behind them that doesn't."""


class ScoreBlock(ABC):
    """What lies between the two products: some rows of scores, which become exponentials, and what the second product reads.

    Each step is done for all rows before the next one: the reductions of one row, which wait for each other, are computed while
    the others' are. There is room for one vector of columns where their number `valid` is known when the kernel runs.
    """

    def __init__(self, rows: int, columns: int, valid: Expr | None = None) -> None:
        self.rows, self.columns, self.valid = rows, columns, valid
        self._vectors = -(-columns // LANES)
        self.within: Range | None = None
        self.scores_pitch = (self._vectors + 4) * LANES
        """A panel of open columns may be wider than all of them."""
        self.pitch = self.scores_pitch
        """That of the rows which the second product reads."""

    def allocate(self) -> None:
        """Emit the buffers."""
        rows = self.rows
        self.scores: Any = T.alloc_buffer((dimension(rows * self.scores_pitch),), "float32")
        self.largest: Any = T.alloc_buffer((LANES * rows,), "float32")
        self._sums: Any = T.alloc_buffer((LANES * rows,), "float32")
        self._numbers: Any = T.alloc_buffer((2 * rows,), "float32")

    @property
    @abstractmethod
    def operands(self) -> tuple[Buffer, ...]:
        """What the second product reads: values, and the parameters of their rows where these have some."""

    @abstractmethod
    def finish(self) -> None:
        """Emit everything between scores and what the second product reads."""

    def begin(self) -> None:
        """Emit the start of a block: minus infinity as the largest values, and behind the last column, up to a whole vector."""
        nothing = T.Bind(splat(T.float32(-math.inf), LANES))
        with T.serial(0, self.rows) as row:
            store(self.largest, row * LANES, nothing, LANES)
            store(self.scores, T.Bind(row * self.scores_pitch + self.columns), nothing, LANES)

    def _vector_range(self) -> tuple[Expr, Expr]:
        """Return the first vector of a row that counts, and the first behind them that doesn't."""
        if self.within is None:
            return 0, self._vectors
        first, last = self.within
        return first * (CHUNK // LANES), T.Bind(T.min(last * (CHUNK // LANES), self._vectors))

    def _exponentials(self) -> None:
        numbers, sums, vectors = self._numbers, self._sums, self._vector_range()
        with T.serial(0, self.rows) as row:
            T.buffer_store(numbers, across_lanes(load(self.largest, row * LANES, LANES), LANES, T.max), [row])
        with T.serial(0, self.rows) as row:
            largest, base = T.Bind(splat(numbers[row], LANES)), T.Bind(row * self.scores_pitch)
            acc = T.alloc_buffer((LANES,), "float32", scope="local")
            store(acc, 0, splat(T.float32(0), LANES), LANES)
            with T.serial(*vectors) as vector:
                at = T.Bind(base + vector * LANES)
                value = T.Bind(exponential(load(self.scores, at, LANES) - largest, LANES))
                store(self.scores, at, value, LANES)
                store(acc, 0, load(acc, 0, LANES) + value, LANES)
            store(sums, row * LANES, load(acc, 0, LANES), LANES)

    def _factor(self, row: Expr) -> Expr:
        """Emit what the exponentials of a row are multiplied by, and its store."""
        total = across_lanes(load(self._sums, row * LANES, LANES), LANES, lambda a, b: a + b)
        factor = T.Bind(T.float32(1) / total)
        T.buffer_store(self._numbers, factor, [2 * row])
        return factor


class RealBlock(ScoreBlock):
    """Scores whose softmax stays float32, in their place."""

    @property
    def operands(self) -> tuple[Buffer, ...]:
        """The softmax."""
        return (self.scores,)

    def finish(self) -> None:
        """Emit everything between scores and their softmax."""
        self._exponentials()
        with T.serial(0, self.rows) as row:
            self._factor(row)
        vectors = self._vector_range()
        with T.serial(0, self.rows) as row:
            factor, base = T.Bind(splat(self._numbers[2 * row], LANES)), T.Bind(row * self.scores_pitch)
            with T.serial(*vectors) as vector:
                at = T.Bind(base + vector * LANES)
                store(self.scores, at, load(self.scores, at, LANES) * factor, LANES)


class IntegerBlock(ScoreBlock):
    """Scores whose softmax becomes integers: by constant parameters, those of `shares`, or each row by itself."""

    def __init__(self, rows: int, columns: int, shares: QuantizeSpec | None, valid: Expr | None = None) -> None:
        super().__init__(rows, columns, valid)
        self._shares = shares
        self.pitch = -(-columns // _PITCH) * _PITCH if valid is None else LANES

    def allocate(self) -> None:
        """Emit the buffers, with zeros behind the last column of integers."""
        super().allocate()
        rows = self.rows
        self._values: Any = T.alloc_buffer((dimension(rows * self.pitch),), "uint8")
        self._of_rows: Any = T.alloc_buffer((2 * rows,), "float32")
        with T.serial(0, rows) as row:
            end = T.Bind((row + 1) * self.pitch)
            for vector in range(1 if self.valid is not None else _PITCH // LANES):
                store(self._values, end - (vector + 1) * LANES, splat(T.uint8(0), LANES), LANES)

    @property
    def operands(self) -> tuple[Buffer, ...]:
        """The integers; where each row has parameters of its own, these."""
        return (self._values, self._of_rows) if self._shares is None else (self._values,)

    def finish(self) -> None:
        """Emit everything between scores and integers."""
        self._exponentials()
        self._parameters()
        if self._shares is None:
            self._integers()
        else:
            self._known_integers(self._shares)

    def _parameters(self) -> None:
        """The largest quotient of a row is that of exp(0), the least is no less than 0."""
        with T.serial(0, self.rows) as row:
            factor = self._factor(row)
            if self._shares is None:
                bits = T.reinterpret("int32", factor) & T.int32(MAGNITUDE_BITS)
                scale, zero_point = parameters_of(T.float32(0), factor, T.Bind(bits), PER_ROW)
                T.buffer_store(self._of_rows, scale, [2 * row])
                T.buffer_store(self._of_rows, zero_point, [2 * row + 1])
                T.buffer_store(self._numbers, T.float32(1) / self._of_rows[2 * row], [2 * row + 1])

    def _integers(self) -> None:
        vectors = self._vector_range()
        with T.serial(0, self.rows) as row:
            factor, steps = (T.Bind(splat(self._numbers[2 * row + kind], LANES)) for kind in range(2))
            zero_point = T.Bind(splat(self._of_rows[2 * row + 1], LANES))
            base, target = T.Bind(row * self.scores_pitch), T.Bind(row * self.pitch)
            with T.serial(*vectors) as vector:
                value = T.Bind(load(self.scores, base + vector * LANES, LANES) * factor)
                rounded = run_time_rounded(value * steps, zero_point, LANES, style_bounds(PER_ROW))
                store(self._values, target + vector * LANES, rounded, LANES)

    def _known_integers(self, shares: QuantizeSpec) -> None:
        vectors = self._vector_range()
        with T.serial(0, self.rows) as row:
            factor = T.Bind(splat(self._numbers[2 * row], LANES))
            base, target = T.Bind(row * self.scores_pitch), T.Bind(row * self.pitch)
            with T.serial(*vectors) as vector:
                value = T.Bind(load(self.scores, base + vector * LANES, LANES) * factor)
                store(self._values, target + vector * LANES, quantized_vector(shares, value, LANES), LANES)
            columns = self.columns if self.valid is None else self.valid
            if not isinstance(columns, int) or columns % LANES:
                # What nothing is quantized to need not be 0, and sums of rows are those of whole vectors.
                before = (self._vectors - 1) * LANES
                last = T.Bind(target + before)
                is_column = T.Ramp(T.int32(0), T.int32(1), LANES) < splat(T.int32(0) + (columns - before), LANES)
                integers = T.Select(is_column, load(self._values, last, LANES), splat(T.uint8(0), LANES))
                store(self._values, last, integers, LANES)
