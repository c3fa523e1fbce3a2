"""Rows of activations times 4-bit weights that have a scale for each block of inputs. One text for every ISA.

Weights lie as uint32 [tiles][in / 8][16 columns]: a word has 8 inputs of a column, those of the low halves of its bytes first,
so that both halves are bytes of 4 neighbours. They are unpacked in registers, for as many rows at once as these hold.
The oracle is `numerics.block_matmul`: sums of the integers of a block are exact; those of reals, and over blocks, are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import FloatOutput
from ..language.kernel import Kernel
from ..language.vectors import (
    Buffer,
    Expr,
    chunked,
    clamped_to,
    for_tiles,
    load,
    prim_func,
    splat,
    store,
    store_partial,
    worthwhile,
)

LANES = 16
WORD = 8
"""Weights of a word."""
_ROWS = 4
"""Rows that are computed at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockMatmulSpec:
    """x [rows, inputs] @ w [inputs, outputs] + bias, clamped, in float32; w in blocks of so many inputs.

    Parameters
    ----------
    is_dynamic
        Whether x is uint8, with a float32 scale and zero point for each row; else it is float32.
    has_zero_points
        Whether blocks have zero points of their own; else that of all is 8.
    """

    rows: int
    inputs: int
    outputs: int
    block: int
    output: FloatOutput
    is_dynamic: bool = False
    has_zero_points: bool = False
    threads: int = 1

    @property
    def tiles(self) -> int:
        """Groups of 16 outputs."""
        return -(-self.outputs // LANES)

    @property
    def blocks(self) -> int:
        """Of the inputs."""
        return self.inputs // self.block


def block_matmul(
    spec: BlockMatmulSpec,
    *,
    weight: npt.NDArray[np.uint8],
    scale: npt.NDArray[np.float32],
    zero_point: npt.NDArray[np.int32],
    bias: npt.NDArray[np.float32],
    isa: str,
) -> Kernel:
    """Return the kernel: x (and its parameters) to y.

    Parameters
    ----------
    weight
        [inputs, outputs], [0; 15].
    scale, zero_point
        [blocks, outputs].
    bias
        [outputs].
    """
    words, scales = packed_words(weight), _tiled(scale)
    constants = [words, scales, _tiled(bias[np.newaxis])]
    if spec.has_zero_points:
        constants.append(_tiled(zero_point.astype(np.float32)))
    product = _Product(spec)
    x = [("x", spec.rows * spec.inputs, "uint8" if spec.is_dynamic else "float32")]
    if spec.is_dynamic:
        x.append(("parameters", 2 * spec.rows, "float32"))
    names = ("weight", "scale", "bias", "zero_point")[: len(constants)]
    of_constants = [(name, each.size, str(each.dtype)) for name, each in zip(names, constants, strict=True)]
    func = prim_func([*x, *of_constants, ("y", spec.rows * spec.outputs, "float32")], product.emit)
    kind = "per row" if spec.is_dynamic else "float"
    return Kernel(name=f"block_matmul.{kind} {spec.block}", isa=isa, func=func, constants=tuple(constants))


def packed_words(weight: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return weights [inputs, outputs] as the kernels read them; columns that are not there are 0."""
    inputs, outputs = weight.shape
    wide = np.zeros((inputs, -(-outputs // LANES) * LANES), np.uint8)
    wide[:, :outputs] = weight
    halves = wide.reshape(inputs // WORD, 2, WORD // 2, -1)
    low_and_high = halves[:, 0] | (halves[:, 1] << 4)  # (words, bytes, columns)
    words = np.ascontiguousarray(low_and_high.transpose(0, 2, 1)).view("<u4")[..., 0]
    return np.ascontiguousarray(words.reshape(inputs // WORD, -1, LANES).transpose(1, 0, 2)).reshape(-1).astype(np.uint32)


def _tiled(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return values [rows, outputs] as [tiles, rows, 16]."""
    rows, outputs = values.shape
    wide = np.zeros((rows, -(-outputs // LANES) * LANES), np.float32)
    wide[:, :outputs] = values
    return np.ascontiguousarray(wide.reshape(rows, -1, LANES).transpose(1, 0, 2)).reshape(-1)


class _Product:
    def __init__(self, spec: BlockMatmulSpec) -> None:
        self._spec = spec

    def emit(self, x: Buffer, *others: Buffer) -> None:
        """Emit the kernel's body."""
        spec = self._spec
        *constants, y = others
        parameters = constants.pop(0) if spec.is_dynamic else None
        weight, scale, bias, *zero_point = constants
        buffers = _Buffers(x, parameters, weight, scale, bias, zero_point[0] if zero_point else None, y)
        threads = worthwhile(spec.threads, spec.rows * spec.inputs * spec.outputs, spec.tiles)
        full, rest = divmod(spec.outputs, LANES)
        if full:
            with chunked(full, min(threads, full)) as tile:
                self._rows(buffers, tile, LANES)
        if rest:
            self._rows(buffers, B.int32(full), rest)

    def _rows(self, buffers: _Buffers, tile: Expr, valid: int) -> None:
        for_tiles(self._spec.rows, _ROWS, lambda first, rows: self._tile(buffers, tile, first, rows, valid))

    def _tile(self, buffers: _Buffers, tile: Expr, first: Expr, rows: int, valid: int) -> None:
        """Emit rows of one tile: over the blocks, what each adds."""
        spec = self._spec
        total: Any = B.alloc_buffer((rows * LANES,), "float32", scope="local")
        sums: Any = B.alloc_buffer((rows * LANES,), "int32" if spec.is_dynamic else "float32", scope="local")
        for row in range(rows):
            store(total, row * LANES, splat(B.float32(0), LANES), LANES)
        with B.serial(0, spec.blocks) as block:
            place = B.Bind((tile * spec.blocks + block) * LANES)
            for row in range(rows):
                store(sums, row * LANES, splat(B.int32(0) if spec.is_dynamic else B.float32(0), LANES), LANES)
            zero_point = None if buffers.zero_point is None else B.Bind(load(buffers.zero_point, place, LANES))
            add = self._adds_integers if spec.is_dynamic else self._adds_reals
            add(buffers, tile, block, first, rows, sums, zero_point)
            factor = B.Bind(load(buffers.scale, place, LANES))
            for row in range(rows):
                of_block = load(sums, row * LANES, LANES).astype(f"float32x{LANES}")
                store(total, row * LANES, load(total, row * LANES, LANES) + of_block * factor, LANES)
        addend = B.Bind(load(buffers.bias, tile * LANES, LANES))
        for row in range(rows):
            value = load(total, row * LANES, LANES)
            if buffers.parameters is not None:
                value = value * splat(buffers.parameters[2 * (first + row)], LANES)
            value = clamped_to(value + addend, spec.output.low, spec.output.high, LANES)
            store_partial(buffers.y, (first + row) * spec.outputs + tile * LANES, value, LANES, valid, "float32")

    def _words(self, buffers: _Buffers, tile: Expr, block: Expr, body: Callable[[Expr, Callable[[int], Expr]], None]) -> None:
        """Emit body(first input, what gives an input's weights as int32) for each word of a block."""
        spec = self._spec
        count = spec.block // WORD
        with B.serial(0, count) as word:
            at = B.Bind(block * count + word)
            words = B.Bind(load(buffers.weight, (tile * (spec.inputs // WORD) + at) * LANES, LANES))

            def integers(of: int) -> Expr:
                half, byte = divmod(of, WORD // 2)
                shift = splat(B.uint32(8 * byte + 4 * half), LANES)
                return ((words >> shift) & splat(B.uint32(15), LANES)).astype(f"int32x{LANES}")

            body(B.Bind(at * WORD), integers)

    def _adds_reals(self, buffers: _Buffers, tile: Expr, block: Expr, first: Expr, rows: int, sums: Buffer, zero: Expr) -> None:
        zero = splat(B.float32(8), LANES) if zero is None else zero

        def body(at: Expr, integers: Callable[[int], Expr]) -> None:
            for of in range(WORD):
                weights = B.Bind(integers(of).astype(f"float32x{LANES}") - zero)
                for row in range(rows):
                    value = splat(buffers.x[(first + row) * self._spec.inputs + at + of], LANES)
                    store(sums, row * LANES, load(sums, row * LANES, LANES) + value * weights, LANES)

        self._words(buffers, tile, block, body)

    def _adds_integers(
        self, buffers: _Buffers, tile: Expr, block: Expr, first: Expr, rows: int, sums: Buffer, zero: Expr
    ) -> None:
        zero = splat(B.int32(8), LANES) if zero is None else B.Bind(zero.astype(f"int32x{LANES}"))
        assert buffers.parameters is not None, "it has quantized rows"
        of_rows = [B.Bind(buffers.parameters[2 * (first + row) + 1].astype("int32")) for row in range(rows)]

        def body(at: Expr, integers: Callable[[int], Expr]) -> None:
            for of in range(WORD):
                weights = B.Bind(integers(of) - zero)
                for row in range(rows):
                    value = buffers.x[(first + row) * self._spec.inputs + at + of].astype("int32") - of_rows[row]
                    store(sums, row * LANES, load(sums, row * LANES, LANES) + splat(value, LANES) * weights, LANES)

        self._words(buffers, tile, block, body)


@dataclass(frozen=True, slots=True, eq=False)
class _Buffers:
    x: Buffer
    parameters: Buffer | None
    weight: Buffer
    scale: Buffer
    bias: Buffer
    zero_point: Buffer | None
    y: Buffer
