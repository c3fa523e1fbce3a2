"""Tiles over as many pixels as a kernel learns when it runs: of few sizes, for each costs time to compile."""

from __future__ import annotations

from collections.abc import Callable

from tvm.script.ir_builder import tirx as T

from ...language.vectors import Expr


def for_pixel_tiles(count: Expr, size: int, body: Callable[[Expr, int], None], *, are_few: bool) -> None:
    """Emit `body(first, pixels)` for tiles of `size` pixels that cover range(count), and for what they leave.

    These are taken by fours (of small tiles by twos), the last of which ends with the last pixel: it may compute some again, to
    the same values. A square image leaves 0, 1, 3 or 4 pixels behind tiles of 6 or 8. Where pixels `are_few`, there is a tile for
    each number behind tiles of 6: a dense layer of few samples has no more rows, and to read its weights twice costs it up to a
    quarter of its time. One or two pixels, whose sums would wait for each other, are left by no tile of 6: 7 are 4 and 3, 8 are 4
    and 4.
    """
    pixels = T.Bind(T.int32(0) + count)
    full = T.Bind(T.truncdiv(pixels, T.int32(size))) if size > 1 else pixels
    if has_tile_for_each(size, are_few=are_few):
        are_one_or_two = T.And(pixels > size, T.And(pixels - full * size > 0, pixels - full * size < 3))
        full = T.Bind(T.Select(are_one_or_two, full - 1, full))
    with T.serial(0, full) as index:
        body(T.Bind(index * size), size)
    if size == 1:
        return
    first, left = T.Bind(full * size), T.Bind(pixels - full * size)
    if has_tile_for_each(size, are_few=are_few):
        fours = T.Bind(T.Select(left == 5, T.int32(0), T.truncdiv(left, T.int32(4))))
        with T.serial(0, fours) as index:
            body(T.Bind(first + index * 4), 4)
        first, left = T.Bind(first + fours * 4), T.Bind(left - fours * 4)
        for some in (5, 3, 2, 1):
            with T.If(left == some), T.Then():
                body(first, some)
        return
    some = 4 if size > 5 else 2
    if size > 2:
        tiles = T.Bind(T.Select(pixels >= some, T.truncdiv(left + (some - 2), T.int32(some)), T.int32(0)))
        with T.serial(0, tiles) as index:
            body(T.Bind(T.min(first + index * some, pixels - some)), some)
        left = T.Bind(left - tiles * some)
    with T.serial(0, T.max(left, 0)) as index:
        body(T.Bind(pixels - left + index), 1)


def has_tile_for_each(size: int, *, are_few: bool) -> bool:
    """Return whether there is a tile for each number of pixels behind tiles of `size`: none is computed again."""
    return size == 6 and are_few
