"""The products of each ISA: how a tile's pixels, its channels and 16 bytes of their reduction meet in registers.

A `Product` says how weights lie in memory and how many bytes a step takes, emits the steps, and brings sums into the order of
their channels. It knows no loops over tiles.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from ...language.arm import vector as v
from ...language.vectors import Expr, dword_of, load, store

Int8Array = npt.NDArray[np.int8]


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """What a step works on.

    Parameters
    ----------
    acc
        Buffer of the accumulators.
    source, starts
        Where the pixels' bytes lie: a buffer, and for each pixel the distance of its bytes from the step's.
    weights
        Buffer of packed weights.
    quads
        Vectors of 4 channels.
    """

    acc: Expr
    source: Expr
    starts: Sequence[int]
    weights: Expr
    quads: int


class Product(ABC):
    """One way to multiply; `flips` where it takes activations as int8, and they lie as uint8 in memory.

    Parameters
    ----------
    step
        Bytes of the reduction in the smallest step; a run of bytes is cut into blocks of 16 and then into these.
    pixel_registers
        Accumulators of a pixel for 4 channels, times `pixels_together`.
    most_quads
        Vectors of 4 channels whose sums grow together; those of a wider panel take turns.
    spread
        How far bytes of a pixel that are neighbours in its run lie from one another, step by step.
    """

    step: ClassVar[int]
    pixels_together: ClassVar[int] = 1
    pixel_registers: ClassVar[int] = 1
    most_quads: ClassVar[int] = 32
    spread: int = 1

    def __init__(self, *, flips: bool) -> None:
        self.flips = flips

    def accumulators(self, pixels: int, quads: int) -> int:
        """Return how many registers a tile's sums take."""
        return -(-pixels // self.pixels_together) * self.pixel_registers * quads

    def parts(self, quads: int) -> list[int]:
        """Return how many vectors each part of a panel has whose sums grow together, the widest first."""
        count = -(-quads // self.most_quads)
        return [quads // count + (part < quads % count) for part in range(count)]

    def starts_of(self, run: int) -> tuple[int, ...]:
        """Return the first byte of each small step behind the blocks of 16; the last one overlaps where bytes are left over."""
        starts = list(range(run // v.BYTES * v.BYTES, run - self.step + 1, self.step))
        if run % self.step:
            starts.append(max(run - self.step, 0))
        return tuple(starts)

    def packed(self, runs: npt.NDArray[np.int8]) -> Int8Array:
        """Return the weights of one panel, int8 (runs, run, channels of whole quads), as its steps read them, flat."""
        ends = np.cumsum(self.parts(runs.shape[2] // v.QUAD))[:-1] * v.QUAD
        return np.concatenate([self._packed_part(part) for part in np.split(runs, ends, axis=2)])

    def _packed_part(self, runs: npt.NDArray[np.int8]) -> Int8Array:
        run = runs.shape[1]
        pieces: list[Int8Array] = []
        covered = run // v.BYTES * v.BYTES
        rest = [(start, self.step) for start in self.starts_of(run)]
        for one in runs:
            for start in range(0, covered, v.BYTES):
                pieces.append(self._pack_block(one[start : start + v.BYTES]))
            done = covered
            for start, step in rest:
                bytes_of_step = np.zeros((step, runs.shape[2]), np.int8)
                end = min(start + step, run)
                bytes_of_step[done - start : end - start] = one[done:end]
                done = end
                pieces.append(self._pack_step(bytes_of_step))
        return np.concatenate([np.zeros(0, np.int8), *(piece.ravel() for piece in pieces)])

    def packed_bytes(self, run: int, quads: int) -> int:
        """Return how many bytes the weights of one run of one panel take."""
        return (run // v.BYTES * v.BYTES + len(self.starts_of(run)) * self.step) * quads * v.QUAD

    def _pack_block(self, block: Int8Array) -> Int8Array:
        """Return 16 bytes by channels in the order in which a block reads them."""
        parts = range(0, v.BYTES, self.step)
        return np.concatenate([self._pack_step(block[start : start + self.step]).ravel() for start in parts])

    @abstractmethod
    def _pack_step(self, step: Int8Array) -> Int8Array:
        """Return a small step's bytes by channels in the order in which it reads them."""

    @abstractmethod
    def emit_block(self, tile: Tile, byte: Expr, weights: Expr) -> None:
        """Emit acc += 16 bytes from `byte` on, times the weights from `weights` on."""

    @abstractmethod
    def emit_step(self, tile: Tile, byte: Expr, weights: Expr, count: int) -> None:
        """Emit acc += one small step; `count` of its bytes may be read, the others count as 0."""

    @abstractmethod
    def sums(self, acc: Expr, pixel: int, quads: int) -> list[Expr]:
        """Return a pixel's sums, a vector for each quad."""

    def _block(self, tile: Tile, byte: Expr, pixel: int) -> Expr:
        """Return 16 bytes of a pixel."""
        value = load(tile.source, byte + tile.starts[pixel], v.BYTES)
        return T.Bind(v.flipped(value) if self.flips else value)


class DotProduct(Product):
    """sdot of int8, or sudot of uint8, by element: a register of 4 channels by 4 bytes, times 4 bytes of a pixel."""

    step = 4

    def __init__(self, *, flips: bool, is_mixed: bool) -> None:
        super().__init__(flips=flips)
        self.is_mixed = is_mixed

    def _pack_step(self, step: Int8Array) -> Int8Array:
        return np.ascontiguousarray(step.T)

    def _dot(self, acc: Expr, values: Expr, lane: int, weights: Expr) -> Expr:
        if self.is_mixed:
            return v.usdot(acc, v.repeated_dword(values, lane, "uint8"), weights)
        return v.sdot(acc, weights, v.repeated_dword(values, lane, "int8"))

    def emit_block(self, tile: Tile, byte: Expr, weights: Expr) -> None:
        """Emit acc += 16 bytes times their weights."""
        values = [self._block(tile, byte, pixel) for pixel in range(len(tile.starts))]
        for lane in range(v.BYTES // self.step):
            self._emit(tile, values, lane, weights + lane * (tile.quads * v.BYTES))

    def emit_step(self, tile: Tile, byte: Expr, weights: Expr, count: int) -> None:
        """Emit acc += one small step."""
        values: list[Expr] = []
        for start in tile.starts:
            if count < self.step:
                dword = dword_of(tile.source, byte + start, count)
            else:
                dword = T.reinterpret("int32", load(tile.source, byte + start, self.step))
            value = T.reinterpret("uint8x16", T.broadcast(dword, v.QUAD))
            values.append(T.Bind(v.flipped(value) if self.flips else value))
        self._emit(tile, values, 0, weights)

    def _emit(self, tile: Tile, values: list[Expr], lane: int, weights: Expr) -> None:
        for quad in range(tile.quads):
            column = T.Bind(load(tile.weights, weights + quad * v.BYTES, v.BYTES))
            for pixel, value in enumerate(values):
                at = (pixel * tile.quads + quad) * v.QUAD
                store(tile.acc, at, self._dot(load(tile.acc, at, v.QUAD), value, lane, column), v.QUAD)

    def sums(self, acc: Expr, pixel: int, quads: int) -> list[Expr]:
        """Return a pixel's accumulators."""
        return [load(acc, (pixel * quads + quad) * v.QUAD, v.QUAD) for quad in range(quads)]


class MatrixProduct(Product):
    """usmmla of uint8 by int8: 8 bytes of two pixels, times 8 bytes of two channels. A pixel without a partner is its own.

    `partner` is the distance of two pixels that lie in memory as the product takes them, by turns; 0 where pixels lie alone.
    """

    step = 8
    pixels_together = 2
    pixel_registers = 2
    most_quads = 6

    def __init__(self, *, flips: bool, partner: int = 0) -> None:
        super().__init__(flips=flips)
        self.partner, self.spread = partner, 2 if partner else 1

    def _pack_step(self, step: Int8Array) -> Int8Array:
        return np.ascontiguousarray(step.T)

    def emit_block(self, tile: Tile, byte: Expr, weights: Expr) -> None:
        """Emit acc += 16 bytes times their weights."""
        pairs: list[tuple[Expr, Expr]] = []
        for first, second in self._pairs(tile):
            if self.partner:
                pairs.append((self._paired(tile, byte, first, second), self._paired(tile, byte + v.BYTES, first, second)))
                continue
            a, b = self._block(tile, byte, first), self._block(tile, byte, second)
            words = [T.reinterpret("int64x2", a), T.reinterpret("int64x2", b)]
            low, high = (T.Bind(T.reinterpret("uint8x16", v.shuffled(words, [lane, 2 + lane]))) for lane in range(2))
            pairs.append((low, high))
        for part in range(2):
            self._emit(tile, [pair[part] for pair in pairs], weights + part * (8 * v.QUAD * tile.quads))

    def emit_step(self, tile: Tile, byte: Expr, weights: Expr, count: int) -> None:
        """Emit acc += one small step."""
        assert count == self.step, "shorter runs have another product"
        self._emit(tile, [self._paired(tile, byte, first, second) for first, second in self._pairs(tile)], weights)

    def _paired(self, tile: Tile, byte: Expr, first: int, second: int) -> Expr:
        """Return 8 bytes of two pixels."""
        starts = [tile.starts[first], tile.starts[second]]
        if self.partner and starts[1] - starts[0] in {0, self.partner}:
            return T.Bind(load(tile.source, byte + starts[0], v.BYTES))
        return T.Bind(v.concatenated([load(tile.source, byte + start, self.step) for start in starts], self.step))

    def _pairs(self, tile: Tile) -> list[tuple[int, int]]:
        pixels = len(tile.starts)
        return [(first, min(first + 1, pixels - 1)) for first in range(0, pixels, 2)]

    def _emit(self, tile: Tile, values: list[Expr], weights: Expr) -> None:
        for column_number in range(2 * tile.quads):
            column = T.Bind(load(tile.weights, weights + column_number * v.BYTES, v.BYTES))
            for pair, value in enumerate(values):
                at = (pair * 2 * tile.quads + column_number) * v.QUAD
                store(tile.acc, at, v.usmmla(load(tile.acc, at, v.QUAD), value, column), v.QUAD)

    def sums(self, acc: Expr, pixel: int, quads: int) -> list[Expr]:
        """Return a pixel's halves of the accumulators that it shares."""
        pair, second = divmod(pixel, 2)
        found: list[Expr] = []
        for quad in range(quads):
            at = (pair * quads + quad) * 2 * v.QUAD
            low, high = (load(acc, at + part * v.QUAD, v.QUAD) for part in range(2))
            found.append(v.shuffled([low, high], [2 * second, 2 * second + 1, 4 + 2 * second, 5 + 2 * second]))
        return found


class WideningProduct(Product):
    """smull of int8: 8 or 16 bytes of a pixel times as many of one channel, whose sums stay in lanes of their own.

    `adds_words` where the products of bytes k and k + 8 of every block add up in 16 bits: never (-128)**2 twice.
    """

    step = 8
    pixel_registers = 4
    most_quads = 1

    def __init__(self, *, flips: bool, adds_words: bool) -> None:
        super().__init__(flips=flips)
        self.adds_words = adds_words

    def _pack_block(self, block: Int8Array) -> Int8Array:
        return np.ascontiguousarray(block.T)

    def _pack_step(self, step: Int8Array) -> Int8Array:
        return np.ascontiguousarray(step.T)

    def emit_block(self, tile: Tile, byte: Expr, weights: Expr) -> None:
        """Emit acc += 16 bytes times their weights."""
        values = [self._block(tile, byte, pixel) for pixel in range(len(tile.starts))]
        for channel in range(tile.quads * v.QUAD):
            column = T.Bind(load(tile.weights, weights + channel * v.BYTES, v.BYTES))
            for pixel, value in enumerate(values):
                at = (pixel * tile.quads * v.QUAD + channel) * v.QUAD
                low, high = (v.smull(v.half(value, part), v.half(column, part)) for part in range(2))
                acc = load(tile.acc, at, v.QUAD)
                total = v.add_pairs(acc, low + high) if self.adds_words else v.add_pairs(v.add_pairs(acc, low), high)
                store(tile.acc, at, total, v.QUAD)

    def emit_step(self, tile: Tile, byte: Expr, weights: Expr, count: int) -> None:
        """Emit acc += one small step."""
        for pixel, start in enumerate(tile.starts):
            if count == self.step:
                value = load(tile.source, byte + start, self.step)
            else:
                value = _short_run(tile.source, byte + start, count)
            value = value ^ T.broadcast(T.uint8(128), 8) if self.flips else value
            value = T.Bind(T.reinterpret("int8x8", value))
            for channel in range(tile.quads * v.QUAD):
                column = load(tile.weights, weights + channel * 8, 8)
                at = (pixel * tile.quads * v.QUAD + channel) * v.QUAD
                store(tile.acc, at, v.add_pairs(load(tile.acc, at, v.QUAD), v.smull(value, column)), v.QUAD)

    def sums(self, acc: Expr, pixel: int, quads: int) -> list[Expr]:
        """Return a pixel's sums, added up."""
        first = pixel * quads * v.QUAD
        vectors = [load(acc, (first + channel) * v.QUAD, v.QUAD) for channel in range(quads * v.QUAD)]
        return [v.sums_of_four(vectors[start : start + v.QUAD]) for start in range(0, len(vectors), v.QUAD)]


def _short_run(source: Expr, byte: Expr, count: int) -> Expr:
    """Return 8 bytes, of which `count` are those from `byte` on and the others 0."""
    low = dword_of(source, byte, min(count, 4))
    high = dword_of(source, byte + 4, count - 4) if count > 4 else T.int32(0)
    dwords = [T.broadcast(T.Bind(part), 2) for part in (low, high)]
    return T.reinterpret("uint8x8", v.shuffled(dwords, [0, 2]))


def adds_words(values: npt.NDArray[Any], run: int) -> bool:
    """Return whether no block of 16 weights of a channel, (runs * run, channels), has two of -128 that are 8 apart."""
    blocks = values.reshape(-1, run, values.shape[-1])[:, : run // v.BYTES * v.BYTES]
    pairs = blocks.reshape(-1, 2, 8, values.shape[-1]) == -128
    return not bool((pairs[:, 0] & pairs[:, 1]).any())
