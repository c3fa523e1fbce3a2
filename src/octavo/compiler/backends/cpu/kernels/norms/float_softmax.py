"""Softmax of float32 rows in plain vectors: largest value, exponentials and their sum, quotients. One text for every ISA.

Or its logarithm: differences in place of quotients.

An addend before it, a mask say, and a quantize behind it are done while a row is in the nearest cache.

A row with a NaN becomes NaN. The order of a row's sum is fixed, so a result doesn't depend on threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......runtime.size import dimension, is_open
from ..language.broadcast import merged_axes
from ..language.float_function import ElementMath
from ..language.kernel import Kernel
from ..language.partial import load_first, store_first
from ..language.vectors import (
    Buffer,
    Expr,
    across_lanes,
    chunked,
    load,
    prim_func,
    splat,
    split,
    store,
    store_partial,
    vector_type,
    where_left,
    worthwhile,
)
from ..quantization.quantize import QuantizeSpec, quantized_vector

_LANES = 16
_OPERATIONS = 8
"""Elementary operations that a value costs, for the choice of threads."""

_LEAST = -80.0
"""What lies further below a row's largest value is 0: beside its 1 it counts for nothing. Its quotient by the row's sum might be
no normal float32, and a product that reads such takes a hundred cycles for each: where attention is masked, half of them are."""

_BITS_OF_1 = 127 << 23
"""The bits of the float32 1.0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SoftmaxAddend:
    """What a row's values are before: x + addend, or x * factor + addend, rounded once.

    `shape` is that of x; that of the addend, `own`, broadcasts to it, and its last axis is as long.
    """

    shape: tuple[int, ...]
    own: tuple[int, ...]
    factor: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatSoftmaxSpec:
    """float32 [rows, columns] to the same; `addend` says what is added before, `result` what the results are quantized to."""

    rows: int
    columns: int
    is_log: bool = False
    addend: SoftmaxAddend | None = None
    result: QuantizeSpec | None = None
    threads: int = 1


def float_softmax(spec: FloatSoftmaxSpec, *, addend: npt.NDArray[np.float32] | None = None, isa: str) -> Kernel:
    """Return the kernel of y = exp(x - max(row)) / sum(exp(x - max(row))), or of its logarithm; x with its addend.

    The addend is the kernel's second argument, or the constant `addend`.
    """
    size = spec.rows * spec.columns

    def emit(*buffers: Buffer) -> None:
        x, *addends, y = buffers
        with chunked(spec.rows, worthwhile(spec.threads, size * _OPERATIONS, spec.rows)) as row:
            _Row(spec, x, addends[0] if addends else None, y, isa).emit(row)

    dtype = "float32" if spec.result is None else spec.result.dtype
    arguments = [("x", size, "float32"), ("y", size, dtype)]
    if spec.addend is not None:
        arguments.insert(1, ("addend", math.prod(spec.addend.own), "float32"))
    constants = () if addend is None else (addend.reshape(-1),)
    name = "float.log_softmax" if spec.is_log else "float.softmax"
    return Kernel(name=name, isa=isa, func=prim_func(arguments, emit), constants=constants)


Place = tuple[Buffer, Expr]
"""A buffer, and where 16 values lie in it."""


class _Row:
    """Emits a row in whole vectors; what is behind them is one more, filled with what counts for nothing."""

    def __init__(self, spec: FloatSoftmaxSpec, x: Buffer, addend: Buffer | None, y: Buffer, isa: str) -> None:
        self._spec, self._x, self._addend, self._y, self._isa = spec, x, addend, y, isa
        self._vectors, self._rest = divmod(spec.columns, _LANES)

    def emit(self, row: Expr) -> None:
        """Emit everything."""
        base = B.Bind(row * self._spec.columns)
        is_real = self._spec.result is None
        # A lane's state lies in memory of its own, which LLVM keeps in a register.
        state: Any = B.alloc_buffer((2 * _LANES,), "float32", scope="local")
        largest_at, sum_at = 0, _LANES
        store(state, largest_at, splat(B.float32(-math.inf), _LANES), _LANES)
        store(state, sum_at, splat(B.float32(0), _LANES), _LANES)
        values: Any = self._y if is_real else B.alloc_buffer((dimension(self._vectors * _LANES + _LANES),), "float32")
        start = base if is_real else B.int32(0)
        last: Any = B.alloc_buffer((_LANES,), "float32", scope="local")
        sums = self._sums(row, base, last)

        def grow(number: Expr | None, place: Place) -> None:
            value = B.Bind(sums(number))
            store(state, largest_at, B.max(load(state, largest_at, _LANES), value), _LANES)
            if self._addend is not None or number is None:
                store(*place, value, _LANES)

        def distance(number: Expr | None, place: Place) -> Expr:
            read = place if self._addend is not None or number is None else (self._x, base + number * _LANES)
            return load(*read, _LANES) - splat(largest, _LANES)

        def add(number: Expr | None, place: Place) -> None:
            value = B.Bind(exponential(distance(number, place), _LANES))
            if not self._spec.is_log:
                store(*place, value, _LANES)
            store(state, sum_at, load(state, sum_at, _LANES) + value, _LANES)

        def finish(number: Expr | None, place: Place) -> None:
            value = distance(number, place) - of_sum if self._spec.is_log else load(*place, _LANES) * of_sum
            result, dtype = self._spec.result, "float32"
            if result is not None:
                value, dtype = quantized_vector(result, value, _LANES), result.dtype
            first = self._vectors * _LANES if number is None else number * _LANES
            if number is None and is_open(self._rest):
                store_first(self._y, base + first, value, _LANES, self._rest, dtype, isa=self._isa)
                return
            store_partial(self._y, base + first, value, _LANES, self._rest if number is None else _LANES, dtype)

        def over_row(body: Callable[[Expr | None, Place], None]) -> None:
            """Emit the body of each vector's number, None for the one that is not whole, and the place of its values."""
            if is_open(self._vectors) or self._vectors:
                with B.serial(0, self._vectors) as index:
                    body(index, (values, B.Bind(start + index * _LANES)))
            where_left(self._rest, lambda: body(None, (last, B.int32(0))))

        over_row(grow)
        largest = B.Bind(across_lanes(load(state, largest_at, _LANES), _LANES, B.max))
        over_row(add)
        total = across_lanes(load(state, sum_at, _LANES), _LANES, lambda a, b: a + b)
        inverse = None if self._spec.is_log else B.Bind(B.float32(1) / total)
        of_sum = logarithm(splat(total, _LANES), _LANES) if inverse is None else splat(inverse, _LANES)
        over_row(finish)

    def _sums(self, row: Expr, base: Expr, last: Buffer) -> Callable[[Expr | None], Expr]:
        """Emit copies of what is behind whole vectors; return what gives a vector of x with its addend."""
        before = self._spec.addend
        at = None if before is None else B.Bind(addend_start(before, row))
        addends: Any = None if before is None else B.alloc_buffer((_LANES,), "float32", scope="local")

        def copy() -> None:
            # Beside an addend of minus infinity, any x counts for nothing.
            behind = self._vectors * _LANES
            nothing = B.float32(-math.inf)
            x_rest = nothing if before is None else B.float32(0)
            load_first(last, 0, self._x, base + behind, _LANES, self._rest, x_rest, isa=self._isa)
            if at is not None:
                load_first(addends, 0, self._addend, at + behind, _LANES, self._rest, nothing, isa=self._isa)

        if is_open(self._rest):
            # LLVM may compute with them before it is known whether something is left: denormal numbers cost hundreds of cycles.
            for each in (last,) if before is None else (last, addends):
                store(each, 0, splat(B.float32(0), _LANES), _LANES)
        where_left(self._rest, copy)

        def of_vector(number: Expr | None) -> Expr:
            x = load(last, 0, _LANES) if number is None else load(self._x, base + number * _LANES, _LANES)
            if before is None:
                return x
            addend = load(addends, 0, _LANES) if number is None else load(self._addend, at + number * _LANES, _LANES)
            if before.factor is None:
                return x + addend
            math_ = ElementMath(_LANES)
            return math_.fused(x, math_.constant(before.factor), addend)

        return of_vector


def addend_start(addend: SoftmaxAddend, row: Expr) -> Expr:
    """Return where the addend of a row of x begins."""
    own = (1,) * (len(addend.shape) - len(addend.own)) + addend.own
    axes = merged_axes(addend.shape[:-1], own[:-1])
    at: Expr = B.int32(0)
    stride = addend.own[-1]
    for number, axis in enumerate(reversed(axes)):
        row, place = (row, row) if number == len(axes) - 1 else split(row, axis.extent)
        if axis.has_b:
            at, stride = at + place * stride, stride * axis.extent
    return at


def exponential(value: Expr, lanes: int) -> Expr:
    """Return exp of a float32 vector of values up to 0; NaN stays NaN."""
    value = B.Bind(value)
    exponential = B.Bind(ElementMath(lanes).exp_of_normal(value))
    return B.Select(value < splat(B.float32(_LEAST), lanes), splat(B.float32(0), lanes), exponential)


def logarithm(value: Expr, lanes: int) -> Expr:
    """Return the natural logarithm of a float32 vector of normal numbers from 1 on; NaN stays NaN.

    A number's bits are its logarithm to base 2, but for .09, in fixed point. Halley's method takes the third power of
    what is off, which is nothing after two times. It asks for `exp` alone, whose bits are the same on every ISA.
    """
    math_ = ElementMath(lanes)
    value = math_.keep(value)
    bits = B.reinterpret(vector_type("int32", lanes), value) - splat(B.int32(_BITS_OF_1), lanes)
    result = math_.keep(bits.astype(vector_type("float32", lanes)) * math_.constant(math.log(2) / 2**23))
    for _ in range(2):
        power = math_.keep(math_.exp_of_normal(result))
        result = math_.keep(result + math_.constant(2.0) * (value - power) / (value + power))
    return result
