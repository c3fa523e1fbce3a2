"""Bytes of several vectors side by side: shuffles within 16 bytes, one instruction each on every CPU with vectors."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from .vectors import Expr, shuffled


def _unpack_indices(size: int, unit: int, *, high: bool) -> list[int]:
    """Return byte indices into (a, b) that alternate `unit` bytes of each, from the low or high half of each 16-byte block."""
    indices: list[int] = []
    for block in range(0, size, 16):
        start = block + (8 if high else 0)
        for position in range(start, start + 8, unit):
            indices.extend(range(position, position + unit))
            indices.extend(range(size + position, size + position + unit))
    return indices


def interleave(a: Expr, b: Expr, size: int, unit: int, *, high: bool) -> Expr:
    """Return `unit` bytes of a and of b by turns, from the low or high half of each 16-byte block: vpunpck."""
    return shuffled([a, b], _unpack_indices(size, unit, high=high))


def interleave_four(taps: list[Expr], size: int) -> list[Expr]:
    """Return four vectors of dwords, each dword holding one channel's bytes of the four `taps`: eight vpunpck instructions.

    `taps` are uint8 x size, size bytes = channels. Dword 4 q + r of vector j holds channel 16 q + 4 j + r, the order in which
    `pack_int16` and `pack_uint8` of four accumulators bring the channels back into sequence.
    """

    def unpack(a: Expr, b: Expr, unit: int, *, high: bool) -> Expr:
        return T.Bind(interleave(a, b, size, unit, high=high))

    pairs = [(unpack(taps[0], taps[1], 1, high=high), unpack(taps[2], taps[3], 1, high=high)) for high in (False, True)]
    return [unpack(first, second, 2, high=high) for first, second in pairs for high in (False, True)]
