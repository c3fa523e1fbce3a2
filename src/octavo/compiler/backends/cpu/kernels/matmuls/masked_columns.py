"""Columns of a block of rows of scores that a mask leaves no share: found when the kernel runs, in the mask itself.

    last:   the chunks of 64 columns, from the last one on, that are masked in every row, are left out
    first:  so are those from the first one on
    rows:   all columns count after all where a row has nothing but masked ones: its softmax is one of these

A masked value is so low that whatever is added to it, its exponential beside that of a value that is not masked is 0: what is
left out changes no bit. That holds where scores have a bound, which the caller sees to.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

from tvm.script.ir_builder import tirx as T

from ......runtime.size import is_open
from ..language.vectors import Buffer, Expr, across_lanes, load, splat, store, vector_type
from ..norms.float_softmax import SoftmaxAddend, addend_start

_LANES = 16
CHUNK = 64
"""Columns that are taken or left out together: rows of integers have as many bytes in a vector."""

SCORE_LIMIT = 1e8
"""Bound of the magnitudes of scores; nobody needs as much, and masks of -1e9 are beyond it."""
_MASKED, _PLAIN = -9e8, -5e8
"""Addends up to the one are masked; those above the other are not. Between them lie more than twice the bound of scores and what
float32 rounds off there."""


def _bits(value: float) -> int:
    [bits] = struct.unpack("<I", struct.pack("<f", value))
    return int(bits)


_MASKED_BITS, _PLAIN_BITS, _INFINITE_BITS = _bits(_MASKED), _bits(_PLAIN), _bits(-math.inf)
"""As unsigned integers negative numbers lie above all others, the larger the lower they are, and NaNs behind infinity."""


def largest_magnitude(numbers: Buffer, lanes: int, count: Expr, pitch: Expr, start: Expr = 0) -> Expr:
    """Emit the largest magnitude of numbers that lie in `count` vectors of so many lanes; NaN where one is."""
    dtype = vector_type("int32", lanes)
    largest: Any = T.alloc_buffer((lanes,), "int32", scope="local")
    store(largest, 0, splat(T.int32(0), lanes), lanes)
    with T.serial(0, count) as number:
        bits = T.reinterpret(dtype, load(numbers, start + number * pitch, lanes)) & splat(T.int32(0x7FFFFFFF), lanes)
        store(largest, 0, T.max(load(largest, 0, lanes), bits), lanes)
    return T.Bind(T.reinterpret("float32", across_lanes(load(largest, 0, lanes), lanes, T.max)))


class MaskedColumns:
    """Emits the search for a block of `rows` rows; it is made where its buffers are to be allocated."""

    def __init__(self, addend: SoftmaxAddend, rows: int, columns: int) -> None:
        self._addend, self._rows, self._columns = addend, rows, columns
        self._chunks = -(-columns // CHUNK)

        self._range: Any = T.alloc_buffer((2,), "int32")
        self._found: Any = T.alloc_buffer((1,), "int32")
        self._starts: Any = T.alloc_buffer((self._rows,), "int32")

    def _take_all(self) -> None:
        T.buffer_store(self._range, T.int32(0), [0])
        T.buffer_store(self._range, T.int32(0) + self._chunks, [1])

    def found(self, addend: Buffer, row: Expr, is_bounded: Expr) -> tuple[Expr, Expr]:
        """Emit the search in the addend's rows from `row` on; every column counts where scores have no bound.

        Returns the first chunk that counts, and the first behind them that doesn't.
        """
        self._take_all()
        # Chunks are read as whole vectors.
        is_worth = T.int32(0) + self._columns > CHUNK if is_open(self._columns) else T.bool(True)
        with T.If(T.And(is_worth, is_bounded)), T.Then():
            with T.serial(0, self._rows) as number:
                T.buffer_store(self._starts, addend_start(self._addend, row + number), [number])
            ends = self._range
            self._while(lambda: T.And(self._found[0] == 0, ends[1] > 0), lambda: self._leave_out(addend, 1, ends[1] - 1, -1))
            self._while(lambda: T.And(self._found[0] == 0, ends[0] < ends[1]), lambda: self._leave_out(addend, 0, ends[0], 1))
            lacks = T.alloc_buffer((1,), "int32", scope="local")
            T.buffer_store(lacks, T.int32(0), [0])
            with T.serial(0, self._rows) as number:
                chunk = T.alloc_buffer((1,), "int32", scope="local")
                T.buffer_store(chunk, ends[0], [0])
                self._while(lambda: T.And(self._found[0] == 0, chunk[0] < ends[1]), lambda: self._see_row(addend, number, chunk))
                with T.If(self._found[0] == 0), T.Then():
                    T.buffer_store(lacks, T.int32(1), [0])
            with T.If(lacks[0] != 0), T.Then():
                self._take_all()
        first, last = (T.Bind(self._range[end]) for end in range(2))
        return first, last

    def _while(self, condition: Callable[[], Expr], step: Callable[[], None]) -> None:
        T.buffer_store(self._found, T.int32(0), [0])
        with T.While(condition()):
            step()

    def _leave_out(self, addend: Buffer, end: int, chunk: Expr, step: int) -> None:
        """Emit that an end of the range moves past a chunk that is masked in every row; else, that one was found that is not."""
        least, most = self._extremes(addend, chunk, range(2), None)
        with T.If(T.And(least >= T.uint32(_MASKED_BITS), most <= T.uint32(_INFINITE_BITS))):
            with T.Then():
                T.buffer_store(self._range, self._range[end] + step, [end])
            with T.Else():
                T.buffer_store(self._found, T.int32(1), [0])

    def _see_row(self, addend: Buffer, row: Expr, chunk: Buffer) -> None:
        """Emit whether a chunk of a row has a value that is not masked, and the step to the next chunk."""
        [least] = self._extremes(addend, chunk[0], range(1), row)
        with T.If(least < T.uint32(_PLAIN_BITS)), T.Then():
            T.buffer_store(self._found, T.int32(1), [0])
        T.buffer_store(chunk, chunk[0] + 1, [0])

    def _extremes(self, addend: Buffer, chunk: Expr, which: range, row: Expr | None) -> list[Expr]:
        """Emit the least bits in a chunk of all rows or of one, and the greatest where these are asked for, too.

        The last vectors of a row end with it.
        """
        state = T.alloc_buffer((2 * _LANES,), "uint32", scope="local")
        for kind in which:
            store(state, kind * _LANES, splat(T.uint32((0xFFFFFFFF, 0)[kind]), _LANES), _LANES)
        first, latest = T.Bind(chunk * CHUNK), T.int32(0) + (self._columns - _LANES)

        def of_row(number: Expr) -> None:
            start = T.Bind(self._starts[number])
            for vector in range(CHUNK // _LANES):
                values = load(addend, start + T.min(first + vector * _LANES, latest), _LANES)
                bits = T.Bind(T.reinterpret(f"uint32x{_LANES}", values))
                for kind in which:
                    choose = (T.min, T.max)[kind]
                    store(state, kind * _LANES, choose(load(state, kind * _LANES, _LANES), bits), _LANES)

        if row is None:
            with T.serial(0, self._rows) as number:
                of_row(number)
        else:
            of_row(row)
        return [across_lanes(load(state, kind * _LANES, _LANES), _LANES, (T.min, T.max)[kind]) for kind in which]
