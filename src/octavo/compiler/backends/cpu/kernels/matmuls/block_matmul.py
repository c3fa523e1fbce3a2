"""Rows of activations times weights of 2 to 4 bits that have a scale for each block of inputs. One text for every ISA.

Activations are records of integers in blocks (`block_rows`), weights one stream of bytes (`block_weights`), which a row reads
once: what takes the time is to read it. Weights are unpacked in registers, for as many rows at once as these hold.
The oracle is `numerics.block_matmul`, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import FloatOutput
from ..language.isa import AVX2, AVX512_VNNI, AVX_VNNI, GENERIC
from ..language.kernel import Kernel
from ..language.vectors import (
    Buffer,
    Expr,
    chunked,
    clamped_to,
    for_tiles,
    intrinsic,
    load,
    prefetch,
    prim_func,
    splat,
    store,
    store_partial,
    worthwhile,
)
from ..language.x86.narrow import narrowed
from .block_dots import WORDS, BlockDots
from .block_rows import record_bytes
from .block_weights import GROUP_INPUTS, GROUP_WORDS, LANES, WORD_BYTES, BlockLayout, packed_blocks, stored_bits

SYMMETRIC = 8
"""The zero point of blocks that have none of their own."""

_VECTORS = {AVX512_VNNI: 4, AVX_VNNI: 2, AVX2: 2}
"""Of 16 columns of a tile: 1 elsewhere."""

_ROWS = {1: 4, 2: 2, 3: 2}
"""Rows that are computed at once at most, by the digits of activations."""

_SUMS = {AVX512_VNNI: 24, AVX_VNNI: 4, AVX2: 4}
"""Of 16 columns that are computed at once at most, 6 elsewhere. Of 256 bits they take half of the registers: sums on the stack
take twice as long where it lies, by chance, so that their loads and stores wait for loads of weights 4 KiB apart."""

_AHEAD = 4096
"""Bytes between what is read and what is asked for: where memory is read from, prefetchers of CPUs stop at the end of a page."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockMatmulSpec:
    """x [rows, inputs] @ w [inputs, outputs] + bias, clamped, in float32; w in blocks of so many inputs.

    Parameters
    ----------
    digits
        Bytes of x's integers.
    has_zero_points
        Whether blocks have zero points of their own; else that of all is 8.
    """

    rows: int
    inputs: int
    outputs: int
    block: int
    digits: int
    output: FloatOutput
    has_zero_points: bool = False
    threads: int = 1

    @property
    def blocks(self) -> int:
        """Of the inputs."""
        return self.inputs // self.block

    @property
    def record(self) -> int:
        """Bytes of a block of a row."""
        return record_bytes(self.block, self.digits)


def block_matmul(
    spec: BlockMatmulSpec,
    *,
    weight: npt.NDArray[np.uint8],
    scale: npt.NDArray[np.float32],
    zero_point: npt.NDArray[np.int32],
    bias: npt.NDArray[np.float32],
    isa: str,
) -> Kernel:
    """Return the kernel: the records of x to y.

    Parameters
    ----------
    weight
        [inputs, outputs], [0; 15].
    scale, zero_point
        [blocks, outputs].
    bias
        [outputs].
    """
    with np.errstate(over="ignore"):
        is_half = isa != GENERIC and bool((scale.astype(np.float16).astype(np.float32) == scale).all())
    weight, zero_point, bits = stored_bits(weight, zero_point, spec.block)
    layout = BlockLayout(block=spec.block, bits=bits, has_half_scales=is_half, has_zero_points=spec.has_zero_points)
    product = _Product(spec, layout, int(zero_point.flat[0]), isa)
    stream = packed_blocks(layout, weight, scale, zero_point, product.vectors)
    addends = np.pad(bias, (0, -spec.outputs % LANES))
    arguments = [
        ("x", spec.rows * spec.blocks * spec.record, "uint8"),
        ("weight", stream.size, "uint8"),
        ("bias", addends.size, "float32"),
        ("y", spec.rows * spec.outputs, "float32"),
    ]
    func = prim_func(arguments, product.emit)
    kind = {1: "int8", 2: "int16", 3: "float32"}[spec.digits]  # 24 bits are no less exact
    if isa in (AVX_VNNI, AVX2):
        func = narrowed(func, isa)
    name = f"block_matmul.{kind} {spec.block}" + (f", {bits} bits" if bits < 4 else "")
    return Kernel(name=name, isa=isa, func=func, constants=(stream, addends))


@dataclass(frozen=True, slots=True, eq=False)
class _Tile:
    """Vectors of columns: where its weights start, its first column, its columns that are there, and which are computed now."""

    vectors: int
    start: Expr
    column: Expr
    valid: int
    computed: range = range(0)

    def number(self, row: int, vector: int) -> int:
        """Return which of the sums of some rows, side by side, one of a computed vector is."""
        return row * len(self.computed) + self.computed.index(vector)


class _Product:
    def __init__(self, spec: BlockMatmulSpec, layout: BlockLayout, zero_point: int, isa: str) -> None:
        """Make it; `zero_point` is that of all blocks where they have none of their own."""
        self._spec, self._layout, self._zero_point, self._isa = spec, layout, zero_point, isa
        self.vectors = _VECTORS.get(isa, 1)
        self._sums = _SUMS.get(isa, 6)
        self._most_rows = min(_ROWS[spec.digits], max(self._sums // spec.digits, 1))

    def emit(self, x: Buffer, weight: Buffer, bias: Buffer, y: Buffer) -> None:
        """Emit the kernel's body."""
        spec, buffers = self._spec, _Buffers(x, weight, bias, y)
        width, size = self.vectors * LANES, self._layout.size(self.vectors) * spec.blocks
        full, rest = divmod(spec.outputs, width)
        threads = worthwhile(spec.threads, spec.rows * spec.inputs * spec.outputs // 4, max(full, 1))
        if full:
            with chunked(full, threads) as index:
                self._rows(buffers, _Tile(self.vectors, B.Bind(index * size), B.Bind(index * width), width))
        if rest:
            self._rows(buffers, _Tile(-(-rest // LANES), B.int32(full * size), B.int32(full * width), rest))

    def _rows(self, buffers: _Buffers, tile: _Tile) -> None:
        def every(first: Expr, rows: int) -> None:
            at_once = max(self._sums // (rows * self._spec.digits), 1)
            for vector in range(0, tile.vectors, at_once):
                some = range(vector, min(vector + at_once, tile.vectors))
                self._tile(buffers, replace(tile, computed=some), first, rows)

        for_tiles(self._spec.rows, self._most_rows, every)

    def _tile(self, buffers: _Buffers, tile: _Tile, first: Expr, rows: int) -> None:
        """Emit rows of some vectors of one tile: over the blocks, what each adds."""
        spec = self._spec
        total = B.alloc_buffer((rows * len(tile.computed) * LANES,), "float32", scope="local")
        for number in range(rows * len(tile.computed)):
            store(total, number * LANES, splat(B.float32(0), LANES), LANES)
        with B.serial(0, spec.blocks) as block:
            start = B.Bind(tile.start + block * self._layout.size(tile.vectors))
            records = [B.Bind(((first + row) * spec.blocks + block) * spec.record) for row in range(rows)]
            dots = BlockDots(self._isa, rows * spec.digits * len(tile.computed))
            self._start(buffers, dots, tile, start, records)
            self._add(buffers, dots, tile, start, records)
            self._scale(buffers, dots, tile, start, records, total)
        for vector in tile.computed:
            addend = B.Bind(load(buffers.bias, tile.column + vector * LANES, LANES))
            for row in range(rows):
                value = load(total, tile.number(row, vector) * LANES, LANES) + addend
                value = clamped_to(value, spec.output.low, spec.output.high, LANES)
                at, valid = (first + row) * spec.outputs + tile.column + vector * LANES, min(LANES, tile.valid - vector * LANES)
                store_partial(buffers.y, at, value, LANES, valid, "float32")

    def _start(self, buffers: _Buffers, dots: BlockDots, tile: _Tile, start: Expr, records: list[Expr]) -> None:
        """Emit the start of each sum: minus the zero point times the sum of the activations."""
        spec = self._spec
        points: list[Expr] = []
        if spec.has_zero_points:
            at = start + (self._layout.zero_points(tile.vectors) + tile.computed.start * LANES)
            points = [B.Bind(load(buffers.weight, at + each * LANES, LANES, "int32")) for each in range(len(tile.computed))]
            self._ask_ahead(buffers, at, len(records))
        for row, record in enumerate(records):
            for digit in range(spec.digits):
                minus = _dword(buffers.x, record + (spec.digits * spec.block + 4 * digit))
                # Its sum has 16 bits, which LLVM is told: it then multiplies words.
                value = B.Bind(minus.astype("int16").astype("int32") if points else minus * B.int32(self._zero_point))
                for place, vector in enumerate(tile.computed):
                    splatted = splat(value, LANES)
                    start_of = points[place] * splatted if points else splatted
                    dots.start(tile.number(row * spec.digits + digit, vector), start_of)

    def _add(self, buffers: _Buffers, dots: BlockDots, tile: _Tile, start: Expr, records: list[Expr]) -> None:
        """Emit the products of a block."""
        spec = self._spec
        inputs = GROUP_INPUTS[self._layout.bits]
        groups = min(WORDS * 4 // inputs, spec.block // inputs)
        numbers = len(records) * spec.digits * len(tile.computed)

        def some(first: Expr) -> None:
            for number in range(numbers):
                dots.begin(number)
            with B.serial(0, groups) as step:
                self._add_group(buffers, dots, tile, start, records, B.Bind(first + step))
            for number in range(numbers):
                dots.finish(number)

        if groups * inputs == spec.block:
            some(B.int32(0))
            return
        with B.serial(0, spec.block // inputs // groups) as index:
            some(B.Bind(index * groups))

    def _add_group(self, buffers: _Buffers, dots: BlockDots, tile: _Tile, start: Expr, records: list[Expr], group: Expr) -> None:
        spec, bits = self._spec, self._layout.bits
        size = GROUP_WORDS[bits] * WORD_BYTES
        for vector in tile.computed:
            at = start + (group * tile.vectors + vector) * size
            words: list[Expr] = []
            for word in range(GROUP_WORDS[bits]):
                words.append(B.Bind(load(buffers.weight, at + word * WORD_BYTES, WORD_BYTES)))
                self._ask_ahead(buffers, at + word * WORD_BYTES, len(records))
            for four in range(GROUP_INPUTS[bits] // 4):
                weights = B.Bind(_weights(words, bits, four))
                for row, record in enumerate(records):
                    for digit in range(spec.digits):
                        place = record + (digit * spec.block + 4 * four) + group * GROUP_INPUTS[bits]
                        bytes_of = B.reinterpret(f"int8x{WORD_BYTES}", splat(_dword(buffers.x, place), LANES))
                        dots.add(tile.number(row * spec.digits + digit, vector), weights, bytes_of)

    def _scale(self, buffers: _Buffers, dots: BlockDots, tile: _Tile, start: Expr, records: list[Expr], total: Buffer) -> None:
        """Emit the addition of a block's sums, scaled, to those of the blocks before it."""
        spec, layout = self._spec, self._layout
        for vector in tile.computed:
            at = start + (layout.scales(tile.vectors) + vector * (LANES * layout.scale_bytes))
            raw = load(buffers.weight, at, LANES * layout.scale_bytes)
            if vector * layout.scale_bytes % 4 == 0:  # once a line
                self._ask_ahead(buffers, at, len(records))
            name = "float16" if layout.has_half_scales else "float32"
            scale = B.Bind(B.reinterpret(f"{name}x{LANES}", raw).astype(f"float32x{LANES}"))
            for row, record in enumerate(records):
                of_row = B.reinterpret("float32", _dword(buffers.x, record + spec.digits * (spec.block + 4)))
                sums = [dots.sum_of(tile.number(row * spec.digits + digit, vector)) for digit in range(spec.digits)]
                place = tile.number(row, vector) * LANES
                value = _fma(_value(sums), scale * splat(of_row, LANES), load(total, place, LANES))
                store(total, place, value, LANES)

    def _ask_ahead(self, buffers: _Buffers, at: Expr, rows: int) -> None:
        """Emit the request for weights that will be read soon; of many rows, all but the first few find them in a cache."""
        if rows < self._most_rows or self._spec.rows == rows:
            prefetch(buffers.weight, at + _AHEAD, to_write=False)


def _value(sums: list[Expr]) -> Expr:
    """Return the float32 of a block's sums by digit, the lowest first."""
    low = sums[0] if len(sums) == 1 else sums[0] + (sums[1] << splat(B.int32(8), LANES))
    real = low.astype(f"float32x{LANES}")
    if len(sums) < 3:
        return real
    return _fma(sums[2].astype(f"float32x{LANES}"), splat(B.float32(1 << 16), LANES), real)


def _fma(x: Expr, y: Expr, z: Expr) -> Expr:
    return intrinsic("llvm.fma", f"float32x{LANES}", x, y, z)


def _dword(x: Buffer, at: Expr) -> Expr:
    return B.reinterpret("int32", load(x, at, 4))


def _weights(words: list[Expr], bits: int, four: int) -> Expr:
    """Return 4 inputs of a group, uint8x64, of its words."""
    if bits != 3:
        return _bits_of(words[0], bits * four, (1 << bits) - 1)
    # The highest bit is the third.
    return _bits_of(words[four // 4], 2 * (four % 4), 3) | _bits_of(words[2], four - 2, 4)


def _bits_of(word: Expr, shift: int, mask: int) -> Expr:
    """Return the bytes of a word shifted to the right, less other bits than those of the mask."""
    if shift:
        pairs, by = B.reinterpret("uint16x32", word), splat(B.uint16(abs(shift)), 32)
        word = B.reinterpret(f"uint8x{WORD_BYTES}", pairs >> by if shift > 0 else pairs << by)
    return word & splat(B.uint8(mask), WORD_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class _Buffers:
    x: Buffer
    weight: Buffer
    bias: Buffer
    y: Buffer
