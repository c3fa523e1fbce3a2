"""The observer inside a kernel, in AVX-512: ranges and codes of a tile's sums while they are in registers, counts a tile later.

    for each tile of a kernel
      for each step of its products       (and, among them, increments for codes of the tile before)
      ranges and codes of its sums; the sums, clamped, to the output
    increments for codes of the last tile

An increment is one store, of which the core does one a cycle; a product is none. Done among products, increments cost next to
nothing; done by themselves, they took two thirds of an observer's time. Statistics are those of ../observe.py, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm.script.ir_builder import tirx as B

from ......numerics.statistics.histogram import CODES, SHIFT
from ..language.isa import AVX512_VNNI
from ..language.vectors import Buffer, Expr, intrinsic, kept, load, shuffled, splat, store
from ..language.x86.vector import LANES
from .statistics import ObserveSpec, Statistics

PAIR = 2 * LANES
NOT_FINITE = 0xFF00
"""Exponent 255 in the upper half of a float32's bits, moved left by one: what is not finite has it, or more."""
_QUAD = 4
"""Codes that one 64-bit load brings."""
_UNROLLED = 64
"""Codes of a portion that are counted without a loop."""
_LEFT, _LEFT_OF_LAST, _BEGIN = range(3)


def upper_halves(first: Expr, second: Expr, *, isa: str) -> Expr:
    """Return the upper halves of the bits of two vectors, uint16 (32,), in an order that the ISA likes.

    With AVX-512 it is theirs (vpermt2w); in narrower registers every four of the first precede the same four of the second
    (vpsrld, vpackusdw).
    """
    if isa == AVX512_VNNI:
        halves = [B.Bind(B.reinterpret(f"uint16x{PAIR}", value)) for value in (first, second)]
        return B.Bind(shuffled(halves, [2 * lane + 1 for lane in range(PAIR)]))
    shift = splat(B.uint32(16), LANES)
    words = [B.Bind(B.reinterpret(f"uint32x{LANES}", value) >> shift) for value in (first, second)]
    halves = [B.Bind(B.reinterpret(f"uint16x{PAIR}", value)) for value in words]
    order = [2 * lane + source for four in range(0, LANES, 4) for source in (0, PAIR) for lane in range(four, four + 4)]
    return B.Bind(shuffled(halves, order))


def codes_of(upper: Expr) -> Expr:
    """Return the codes (see numerics/statistics/histogram.py) of values by the upper halves of their bits."""
    return upper >> splat(B.uint16(SHIFT - 16), PAIR)


def for_codes(codes: Buffer, at: Expr, body: Callable[[Expr, int], None]) -> None:
    """Emit `body`(code, lane) for four codes from `at` on."""
    packed = B.Bind(B.reinterpret("uint64", load(codes, at, _QUAD)))
    for lane in range(_QUAD):
        code = (packed >> B.uint64(16 * lane)) & B.uint64(0xFFFF) if lane < 3 else packed >> B.uint64(48)
        body(B.Cast("int32", code), lane)


class TileObserver:
    """Observes a tensor [pixels][channels] of whole vectors that a kernel computes tile by tile.

    Parameters
    ----------
    spec
        Of the whole tensor, inner = 1.
    ranges, counts
        The kernel's buffers.
    values
        Of a tile, at most; a multiple of 16.
    slots
        Places among a tile's products where codes are counted.
    """

    def __init__(self, spec: ObserveSpec, ranges: Buffer, counts: Buffer, *, values: int, slots: int) -> None:
        assert spec.inner == 1, "channels are last"
        assert spec.channels % LANES == 0, "channels fill whole vectors"
        self.spec = spec
        self._statistics = Statistics(spec=spec, ranges=ranges, counts=counts)
        self._portion = _QUAD * -(-values // (_QUAD * slots))
        # Codes end at `_end`, and so do portions: how many are left says where they are. A last vector without a partner is
        # coded twice, the second time behind the end.
        self._end = -(-values // self._portion) * self._portion
        self._size = -(-(self._end + LANES) // PAIR) * PAIR
        self._codes = B.alloc_buffer((2 * self._size,), "uint16", scope="local")
        self._values = B.alloc_buffer((values,), "float32", scope="local")
        self._state = B.alloc_buffer((3,), "int32", scope="local")
        for index in (_LEFT, _LEFT_OF_LAST, _BEGIN):
            B.buffer_store(self._state, B.int32(0), [index])

    def among(self, steps: int, step: Callable[[Expr], None]) -> None:
        """Emit `step`(number) for each of range(steps): one slot each, as long as codes are left."""
        left = kept(self._state[_LEFT], "int32")
        end = kept(self._state[_BEGIN] + self._end - left, "int32")
        counting = kept(B.min(B.floordiv(left, self._portion), steps), "int32")
        with B.serial(0, counting) as index:
            step(index)
            self._count(end + index * self._portion)
        B.buffer_store(self._state, left - counting * self._portion, [_LEFT])
        with B.serial(0, steps - counting) as index:
            step(counting + index)

    def slot(self) -> None:
        """Emit one slot."""
        left = kept(self._state[_LEFT], "int32")
        with B.If(left > 0), B.Then():
            self._count(self._state[_BEGIN] + self._end - left)
            B.buffer_store(self._state, left - self._portion, [_LEFT])

    def drain(self) -> None:
        """Emit the counting of all codes that are left."""
        for _ in range(2):
            self._turn(0)

    def _turn(self, portions: int) -> None:
        """Emit the end of a tile's counting; the next tile counts the last one's codes, and so many portions come behind."""
        left = kept(self._state[_LEFT], "int32")
        start = kept(self._state[_BEGIN] + self._end - left, "int32")
        with B.serial(0, B.floordiv(left, _QUAD)) as quad:
            self._count_quad(B.Bind(start + quad * _QUAD))
        B.buffer_store(self._state, self._state[_LEFT_OF_LAST], [_LEFT])
        B.buffer_store(self._state, B.int32(portions * self._portion), [_LEFT_OF_LAST])
        B.buffer_store(self._state, self._size - self._state[_BEGIN], [_BEGIN])

    def take(self, sums: list[list[Expr]], channel: Expr, index_of: Callable[[Expr], Expr]) -> None:
        """Emit ranges and codes of a tile's sums.

        Parameters
        ----------
        sums
            By vector, by pixel; bound.
        channel
            Of the first lane of the first vector.
        index_of
            Where in the tensor that lane of a pixel (by number) lies.
        """
        vectors = len(sums)
        low = B.alloc_buffer((vectors * LANES,), "float32", scope="local")
        high = B.alloc_buffer((vectors * LANES,), "float32", scope="local")
        for number, column in enumerate(sums):
            store(low, number * LANES, splat(B.float32(math.inf), LANES), LANES)
            store(high, number * LANES, splat(B.float32(-math.inf), LANES), LANES)
            for value in column:
                # In this order: where the value is NaN, the comparison is false and the range stays.
                store(low, number * LANES, B.min(value, load(low, number * LANES, LANES)), LANES)
                store(high, number * LANES, B.max(value, load(high, number * LANES, LANES)), LANES)
        worst = self._encode([value for column in sums for value in column])
        ranges, channels = self._statistics.ranges, self.spec.channels
        with B.If(worst < B.uint16(NOT_FINITE)):
            with B.Then():
                for lane in range(0, vectors * LANES, LANES):
                    least, greatest = channel + lane, channel + (channels + lane)
                    store(ranges, least, B.min(load(ranges, least, LANES), load(low, lane, LANES)), LANES)
                    store(ranges, greatest, B.max(load(ranges, greatest, LANES), load(high, lane, LANES)), LANES)
            with B.Else():
                self._widen_one_by_one(sums, channel, index_of)

    def clamped(self, value: Expr) -> Expr:
        """Return a vector within the bounds of the spec."""
        value = B.max(value, splat(B.float32(self.spec.low), LANES)) if not math.isinf(self.spec.low) else value
        return B.min(value, splat(B.float32(self.spec.high), LANES)) if not math.isinf(self.spec.high) else value

    def _encode(self, values: list[Expr]) -> Expr:
        """Emit the codes of all values; return the largest magnitude's upper half, moved left by one."""
        portions = -(-len(values) * LANES // self._portion)
        # What was counted makes room.
        self._turn(portions)
        begin = kept(self._size - self._state[_BEGIN] + (self._end - portions * self._portion), "int32")
        largest = B.alloc_buffer((PAIR,), "uint16", scope="local")
        store(largest, 0, splat(B.uint16(0), PAIR), PAIR)
        for first in range(0, len(values), 2):
            upper = upper_halves(values[first], values[min(first + 1, len(values) - 1)], isa=AVX512_VNNI)
            store(largest, 0, B.max(load(largest, 0, PAIR), upper + upper), PAIR)
            store(self._codes, begin + first * LANES, codes_of(upper), PAIR)
        for at in range(len(values) * LANES, portions * self._portion, _QUAD):
            # What fills up the last portion counts behind the table: nobody reads that.
            store(self._codes, begin + at, splat(B.uint16(CODES + at % LANES), _QUAD), _QUAD)
        return intrinsic(f"llvm.vector.reduce.umax.v{PAIR}i16", "uint16", load(largest, 0, PAIR))

    def _widen_one_by_one(self, sums: list[list[Expr]], channel: Expr, index_of: Callable[[Expr], Expr]) -> None:
        """Emit the ranges of a tile that holds NaN or infinity."""
        pixels = len(sums[0])
        for number, column in enumerate(sums):
            for pixel, value in enumerate(column):
                store(self._values, (number * pixels + pixel) * LANES, value, LANES)
        # One long loop: LLVM writes a loop over lanes out, in every tile, though hardly any holds such.
        with B.serial(0, len(sums) * pixels * LANES) as index:
            vector, lane = B.Bind(B.floordiv(index, LANES)), B.floormod(index, LANES)
            place = B.Bind(B.floordiv(vector, pixels) * LANES + lane)
            self._statistics.widen(
                B.Bind(self._values[index]), B.Bind(index_of(B.floormod(vector, pixels)) + place), channel + place
            )

    def _count(self, at: Expr) -> None:
        """Emit the increments of one portion of codes, from `at` on."""
        start = B.Bind(at)
        if self._portion > _UNROLLED:
            with B.serial(0, self._portion // _QUAD) as quad:
                self._count_quad(B.Bind(start + quad * _QUAD))
            return
        for quad in range(0, self._portion, _QUAD):
            self._count_quad(start + quad)

    def _count_quad(self, at: Expr) -> None:
        for_codes(self._codes, at, lambda code, _: self._statistics.count(code, 0))
