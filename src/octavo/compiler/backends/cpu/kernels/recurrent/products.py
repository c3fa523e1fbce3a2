"""Products of a hidden state with the recurrent weights, in registers: of float32, or of a state rounded per step and int8.

A state is rounded as `numerics.quantized.recurrence` says; its integers and the sums are the same on every ISA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......numerics.quantized.recurrence import MIN_SCALE
from ..language.arm.vector import BYTES, QUAD, concatenated, sdot
from ..language.float_function import ElementMath
from ..language.isa import ARM_DOTPROD, ARM_I8MM, ISAS
from ..language.rounding import integer_of
from ..language.vectors import Buffer, Expr, load, shuffled, splat, store
from ..language.x86.vector import dot_int16
from ..quantization.dynamic import INFINITY_BITS, NAN_BITS, range_of

LANES = 16
Floats = npt.NDArray[np.float32]
Constants = dict[str, npt.NDArray[Any]]
_BYTES = (ARM_DOTPROD, ARM_I8MM)
"""ISAs whose kernels multiply the bytes of a state one by one: four products to a sum."""
_SUMS = 4
"""Vectors of sums that are in registers together, at least: one waits for its last product."""


def over(width: int, body: Callable[[Expr, int], None], vectors: int = 1) -> None:
    """Emit body(start, lanes) over the elements of a state, so many vectors at a time; the last ones alone."""
    full, rest = divmod(width, LANES)
    done = 0
    for step in dict.fromkeys((vectors, 1)):
        count = (full - done) // step
        if count:
            with B.serial(0, count) as index:
                body(B.Bind(index * (step * LANES) + done * LANES), step * LANES)
        done += count * step
    if rest:
        body(B.int32(done * LANES), rest)


@dataclass(kw_only=True, slots=True)
class _Products:
    """Products with the weights in `buffers`, for each step anew."""

    width: int
    buffers: Mapping[str, Buffer]
    _is_zero: Any = field(init=False, default=None)
    """Whether the state is known to be zeros, when the kernel runs; None: never."""

    def start(self, is_zero: Expr | None) -> None:
        """Begin a step."""
        self._is_zero = is_zero

    def over(self, state: Buffer, gates: range, body: Callable[[Expr, int, list[Expr]], None]) -> None:
        """Emit body(start, lanes, products of some gates' weights with a state) over the elements of a state."""

        def block(start: Expr, lanes: int) -> None:
            part, count = min(lanes, LANES), len(gates)
            parts = [(number, number * count * part) for number in range(lanes // part)]
            sums = self._sums(state, gates, start, part, len(parts))
            for number, first in parts:
                own = B.Bind(start + number * part)
                found = [load(sums, first + gate * part, part) for gate in range(count)]
                body(own, part, [self._real(total, gate, own, part) for gate, total in zip(gates, found, strict=True)])

        over(self.width, block, max(1, _SUMS // len(gates)))

    def _sums(self, state: Buffer, gates: range, start: Expr, lanes: int, parts: int) -> Any:
        """Return a buffer with the sums of some vectors from a start on, by gate."""
        raise NotImplementedError

    def _real(self, total: Expr, gate: int, start: Expr, lanes: int) -> Expr:
        """Return sums in float32."""
        raise NotImplementedError

    def _count(self, count: int) -> Expr:
        """Return how many of so many rows are to be summed."""
        return B.int32(count) if self._is_zero is None else B.Bind(B.Select(self._is_zero, B.int32(0), B.int32(count)))


@dataclass(kw_only=True, slots=True)
class FloatProducts(_Products):
    """Sums in the order of the state's elements, rounded as the products of dense layers are."""

    @staticmethod
    def constants(weights: Floats, width: int, passes: Sequence[range]) -> Constants:
        """Return the weights (width, gates * width): block by block of lanes; in a block by row, in a row by gate."""
        cube = weights.reshape(width, -1, width)
        blocks = [
            cube[:, gates.start : gates.stop, start : start + LANES].reshape(-1)
            for gates in passes
            for start in range(0, width, LANES)
        ]
        return {"weights": np.ascontiguousarray(np.concatenate(blocks), np.float32)}

    def take(self, state: Buffer) -> None:
        """Emit what is to be done once for a state: nothing."""

    def _sums(self, state: Buffer, gates: range, start: Expr, lanes: int, parts: int) -> Any:
        count = len(gates)
        sums: Any = B.alloc_buffer((parts * count * lanes,), "float32", scope="local")
        for number in range(parts * count):
            store(sums, number * lanes, splat(B.float32(0), lanes), lanes)
        block = B.Bind((gates.start * self.width + start * count) * self.width)
        with B.serial(0, self._count(self.width)) as row:
            value = B.Bind(splat(state[row], lanes))
            at = B.Bind(block + row * (count * lanes))
            for number in range(parts * count):
                part, gate = divmod(number, count)
                total = load(sums, number * lanes, lanes)
                weights = load(self.buffers["weights"], at + (part * self.width * count + gate) * lanes, lanes)
                store(sums, number * lanes, total + value * weights, lanes)
        return sums

    def _real(self, total: Expr, gate: int, start: Expr, lanes: int) -> Expr:
        del gate, start, lanes
        return total


@dataclass(kw_only=True, slots=True)
class IntegerProducts(_Products):
    """Exact int32 sums of a rounded state, scaled by the state's scale, then the column's, in float32.

    Parameters
    ----------
    limit
        The largest integer of a state.
    """

    isa: str
    limit: int
    _rounded: Any = field(init=False)
    """The integers of a state, int16; for dot products of bytes these, the upper ones and then the lower ones less 128."""
    _scale: Any = field(init=False)
    """Scale of a state."""

    def __post_init__(self) -> None:
        """Allocate what holds a rounded state."""
        is_split = self.isa in _BYTES
        self._rounded = B.alloc_buffer((self._rows * (1 + is_split),), "int8" if is_split else "int16", scope="local")
        self._scale = B.alloc_buffer((1,), "float32", scope="local")

    @staticmethod
    def constants(weights: npt.NDArray[np.int8], scale: Floats, width: int, passes: Sequence[range], isa: str) -> Constants:
        """Return int8 weights (width, gates * width) in the order of registers, and scales (gates * width,).

        Where lower bytes are read less 128, sums of columns make up for it.
        """
        group, columns = _group(isa), -(-width // LANES) * LANES
        rows = -(-width // group) * group
        cube = np.zeros((rows, weights.shape[1] // width, columns), np.int8)
        cube[:width, :, :width] = weights.reshape(width, -1, width)
        packed: list[npt.NDArray[Any]] = []
        for gates in passes:
            for start in range(0, columns, LANES):
                block = cube[:, gates.start : gates.stop, start : start + LANES]
                packed.append(block.reshape(rows // group, group, len(gates), LANES).transpose(0, 2, 3, 1).reshape(-1))
        found: Constants = {"weights": np.concatenate(packed), "scale": _by_column(scale, width, columns)}
        missing = 128 * weights.sum(axis=0, dtype=np.int32)
        return found | ({"missing": _by_column(missing, width, columns)} if isa in _BYTES else {})

    @property
    def _rows(self) -> int:
        group = _group(self.isa)
        return -(-self.width // group) * group

    @property
    def _columns(self) -> int:
        return -(-self.width // LANES) * LANES

    def take(self, state: Buffer) -> None:
        """Emit the rounding of a state, which all products until the next one read."""
        if self._is_zero is None:
            self._round(state)
            return
        with B.If(self._is_zero):
            with B.Then():
                B.buffer_store(self._scale, B.float32(0), [0])
            with B.Else():
                self._round(state)

    def _round(self, state: Buffer) -> None:
        *_, bits = range_of(state, B.int32(0), self.width, self.isa)
        limit = B.float32(self.limit)
        scale = B.Bind(B.max(B.reinterpret("float32", bits) / limit, B.float32(MIN_SCALE)))
        is_finite = bits < B.int32(INFINITY_BITS)
        scale = B.Bind(B.Select(is_finite, scale, B.reinterpret("float32", B.int32(NAN_BITS))))
        factor = B.Bind(B.float32(1) / scale)
        B.buffer_store(self._scale, scale, [0])

        def rounded(start: Expr, lanes: int) -> None:
            value = B.Bind(load(state, start, lanes) * splat(factor, lanes))
            low, high = splat(B.float32(-self.limit), lanes), splat(limit, lanes)
            value = B.Bind(B.Select(value > low, value, low))
            integers = B.Bind(integer_of(B.Bind(B.Select(value < high, value, high)), lanes))
            if self.isa not in _BYTES:
                store(self._rounded, start, integers.astype(_vector("int16", lanes)), lanes)
                return
            lower = (integers & splat(B.int32(255), lanes)) - splat(B.int32(128), lanes)
            store(self._rounded, start, (integers >> splat(B.int32(8), lanes)).astype(_vector("int8", lanes)), lanes)
            store(self._rounded, start + self._rows, lower.astype(_vector("int8", lanes)), lanes)

        over(self.width, rounded)
        for place in range(self.width, self._rows):  # which meet weights of zeros
            for first in (0, self._rows)[: 1 + (self.isa in _BYTES)]:
                B.buffer_store(self._rounded, B.Cast(str(self._rounded.dtype), 0), [first + place])

    def _sums(self, state: Buffer, gates: range, start: Expr, lanes: int, parts: int) -> Any:
        """Return those of the state that was taken last."""
        del state
        count, group, halves = len(gates), _group(self.isa), 2 if self.isa in _BYTES else 1
        size = parts * count * LANES
        sums: Any = B.alloc_buffer((halves * size,), "int32", scope="local")
        for place in range(0, halves * size, LANES):
            store(sums, place, splat(B.int32(0), LANES), LANES)
        block = B.Bind((gates.start * self._columns + start * count) * self._rows)
        with B.serial(0, self._count(self._rows // group)) as row:
            values = [B.Bind(self._repeated(row * group + half * self._rows)) for half in range(halves)]
            at = B.Bind(block + row * (count * LANES * group))
            for number in range(parts * count):
                part, gate = divmod(number, count)
                place = at + (part * self._rows * count + gate * group) * LANES
                weights = B.Bind(load(self.buffers["weights"], place, LANES * group))
                for half, value in enumerate(values):
                    own = half * size + number * LANES
                    store(sums, own, self._added(load(sums, own, LANES), value, weights), LANES)
        if halves == 1 and lanes == LANES:
            return sums
        result: Any = B.alloc_buffer((parts * count * lanes,), "int32", scope="local")
        for number in range(parts * count):
            total = load(sums, number * LANES, lanes)
            if halves == 2:
                total = (total << splat(B.int32(8), lanes)) + load(sums, size + number * LANES, lanes)
            store(result, number * lanes, total, lanes)
        return result

    def _real(self, total: Expr, gate: int, start: Expr, lanes: int) -> Expr:
        math, column = ElementMath(lanes), gate * self._columns + start
        if self.isa in _BYTES:
            missing = load(self.buffers["missing"], column, lanes)
            total = total + (missing if self._is_zero is None else B.Select(self._is_zero, splat(B.int32(0), lanes), missing))
        by_state = math.fenced(total.astype(_vector("float32", lanes)) * splat(self._scale[0], lanes))
        return math.fenced(by_state * load(self.buffers["scale"], column, lanes))

    def _repeated(self, row: Expr) -> Expr:
        """Return the integers of a group of rows, in every lane."""
        if self.isa in _BYTES:
            return B.reinterpret("int8x16", splat(B.reinterpret("int32", load(self._rounded, row, 4)), QUAD))
        if _group(self.isa) == 2:
            return B.reinterpret("int16x32", splat(B.reinterpret("int32", load(self._rounded, row, 2)), LANES))
        return splat(self._rounded[row], LANES).astype("int32x16")

    def _added(self, total: Expr, value: Expr, weights: Expr) -> Expr:
        """Return sums with the products of a group of rows."""
        if _group(self.isa) == 2:
            return dot_int16(total, value, weights.astype("int16x32"))
        if self.isa not in _BYTES:
            return total + value * weights.astype("int16x16").astype("int32x16")
        parts: list[Expr] = []
        for quarter in range(QUAD):
            own = shuffled([total], list(range(QUAD * quarter, QUAD * quarter + QUAD)))
            bytes_of = shuffled([weights], list(range(BYTES * quarter, BYTES * quarter + BYTES)))
            parts.append(sdot(own, bytes_of, value))
        return concatenated(parts, QUAD)


def _group(isa: str) -> int:
    """Return how many rows of the weights an instruction sums."""
    return 4 if isa in _BYTES else 2 if ISAS[isa].family == "x86" else 1


def _by_column(values: npt.NDArray[Any], width: int, columns: int) -> npt.NDArray[Any]:
    """Return numbers of columns, each gate's padded."""
    cube = np.zeros((values.size // width, columns), values.dtype)
    cube[:, :width] = values.reshape(-1, width)
    return cube.reshape(-1)


def _vector(dtype: str, lanes: int) -> str:
    return dtype if lanes == 1 else f"{dtype}x{lanes}"
