"""Some rows of an attention's scores, which become exponentials, and the integers of their softmax, between its two products."""

from __future__ import annotations

import math
from typing import Any

from tvm.script.ir_builder import tirx as T

from ......numerics.dynamic import PER_ROW, style_bounds
from ......runtime.size import dimension
from ..language.rounding import run_time_rounded
from ..language.vectors import Expr, across_lanes, load, splat, store
from ..norms.float_softmax import exponential
from ..quantization.dynamic import MAGNITUDE_BITS, parameters_of
from ..quantization.quantize import QuantizeSpec, quantized_vector
from .batch_product import LANES
from .masked_columns import CHUNK

_PITCH = CHUNK
"""Bytes that a row of integers is a multiple of, so that its sum is one of whole vectors."""

Range = tuple[Expr, Expr]
"""Of chunks of columns: the first one that counts, and the first behind them that doesn't."""


class ScoreBlock:
    """What lies between the two products: some rows of scores, which become exponentials, and the integers of their softmax.

    Each step is done for all rows before the next one: the reductions of one row, which wait for each other, are computed while
    the others' are.
    """

    def __init__(self, rows: int, columns: int, shares: QuantizeSpec | None, valid: Expr | None = None) -> None:
        self.rows, self.columns, self.valid, self._shares = rows, columns, valid, shares
        self._vectors = -(-columns // LANES)
        self.within: Range | None = None
        self.scores_pitch = (self._vectors + 4) * LANES
        """A panel of open columns may be wider than all of them."""
        self.pitch = -(-columns // _PITCH) * _PITCH if valid is None else LANES

    def allocate(self) -> None:
        """Emit the buffers, with zeros behind the last column of integers."""
        rows = self.rows
        self.scores: Any = T.alloc_buffer((dimension(rows * self.scores_pitch),), "float32")
        self.integers: Any = T.alloc_buffer((dimension(rows * self.pitch),), "uint8")
        self.parameters: Any = T.alloc_buffer((2 * rows,), "float32")
        self.largest: Any = T.alloc_buffer((LANES * rows,), "float32")
        self._sums: Any = T.alloc_buffer((LANES * rows,), "float32")
        self._numbers: Any = T.alloc_buffer((2 * rows,), "float32")
        with T.serial(0, rows) as row:
            end = T.Bind((row + 1) * self.pitch)
            for vector in range(1 if self.valid is not None else _PITCH // LANES):
                store(self.integers, end - (vector + 1) * LANES, splat(T.uint8(0), LANES), LANES)

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

    def quantize(self) -> None:
        """Emit everything between scores and integers."""
        self._exponentials()
        self._parameters()
        if self._shares is None:
            self._integers()
        else:
            self._known_integers(self._shares)

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

    def _parameters(self) -> None:
        """The largest quotient of a row is that of exp(0), the least is no less than 0."""
        with T.serial(0, self.rows) as row:
            total = across_lanes(load(self._sums, row * LANES, LANES), LANES, lambda a, b: a + b)
            factor = T.Bind(T.float32(1) / total)
            T.buffer_store(self._numbers, factor, [2 * row])
            if self._shares is None:
                bits = T.reinterpret("int32", factor) & T.int32(MAGNITUDE_BITS)
                scale, zero_point = parameters_of(T.float32(0), factor, T.Bind(bits), PER_ROW)
                T.buffer_store(self.parameters, scale, [2 * row])
                T.buffer_store(self.parameters, zero_point, [2 * row + 1])
                T.buffer_store(self._numbers, T.float32(1) / self.parameters[2 * row], [2 * row + 1])

    def _integers(self) -> None:
        vectors = self._vector_range()
        with T.serial(0, self.rows) as row:
            factor, steps = (T.Bind(splat(self._numbers[2 * row + kind], LANES)) for kind in range(2))
            zero_point = T.Bind(splat(self.parameters[2 * row + 1], LANES))
            base, target = T.Bind(row * self.scores_pitch), T.Bind(row * self.pitch)
            with T.serial(*vectors) as vector:
                value = T.Bind(load(self.scores, base + vector * LANES, LANES) * factor)
                rounded = run_time_rounded(value * steps, zero_point, LANES, style_bounds(PER_ROW))
                store(self.integers, target + vector * LANES, rounded, LANES)

    def _known_integers(self, shares: QuantizeSpec) -> None:
        vectors = self._vector_range()
        with T.serial(0, self.rows) as row:
            factor = T.Bind(splat(self._numbers[2 * row], LANES))
            base, target = T.Bind(row * self.scores_pitch), T.Bind(row * self.pitch)
            with T.serial(*vectors) as vector:
                value = T.Bind(load(self.scores, base + vector * LANES, LANES) * factor)
                store(self.integers, target + vector * LANES, quantized_vector(shares, value, LANES), LANES)
            columns = self.columns if self.valid is None else self.valid
            if not isinstance(columns, int) or columns % LANES:
                # What nothing is quantized to need not be 0, and sums of rows are those of whole vectors.
                before = (self._vectors - 1) * LANES
                last = T.Bind(target + before)
                is_column = T.Ramp(T.int32(0), T.int32(1), LANES) < splat(T.int32(0) + (columns - before), LANES)
                integers = T.Select(is_column, load(self.integers, last, LANES), splat(T.uint8(0), LANES))
                store(self.integers, last, integers, LANES)
