"""Bilinear resizing of uint8 images in integers. Oracle: `numerics.resize_bilinear`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ....numerics import FRACTION_BITS, LinearTaps
from .isa import lanes_of
from .spec import Kernel
from .vectors import Buffer, Expr, chunked, for_each_vector, load, prim_func, splat, store, vector_type, worthwhile

_OPERATIONS = 8
"""Elementary operations that a value costs, for the choice of threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TappedImage:
    """Integers [batch, in_height, in_width, channels] to as many rows and columns as there are taps."""

    batch: int
    in_height: int
    in_width: int
    channels: int
    rows: LinearTaps
    columns: LinearTaps
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ResizeSpec(TappedImage):
    """uint8 to uint8, of the same scale and zero point."""

    rounding: Literal["half_up", "half_even"] = "half_even"


def resize_bilinear(spec: ResizeSpec, *, isa: str) -> Kernel:
    """Return the kernel that reads each value's four neighbours and shifts their weighted sum by 22 bits."""

    def mixed(corners: Corners, across: Expr, down: Expr, lanes: int) -> Expr:
        top, bottom = [_between(left, right, across, lanes) for left, right in corners]
        acc = B.Bind((top << splat(B.int32(FRACTION_BITS), lanes)) + (bottom - top) * splat(down, lanes))
        return _shifted(acc, spec.rounding, lanes)

    return mixing_kernel("resize_bilinear", spec, "uint8", mixed, isa=isa, lanes_full=lanes_of(isa), operations=_OPERATIONS)


Corners = list[tuple[Expr, Expr]]
"""A result's neighbours, int32: the left and the right one of the upper line, then of the lower."""


def mixing_kernel(
    name: str,
    spec: TappedImage,
    dtype: str,
    mixed: Callable[[Corners, Expr, Expr, int], Expr],
    *,
    isa: str,
    lanes_full: int,
    operations: int,
) -> Kernel:
    """Return the kernel of `mixed(corners, across, down, lanes)`; across and down are the int32 fractions of a result's place."""
    height, width, channels = len(spec.rows.first), len(spec.columns.first), spec.channels
    size = spec.batch * height * width * channels

    def emit(x: Buffer, rows: Buffer, columns: Buffer, y: Buffer) -> None:
        threads = worthwhile(spec.threads, size * operations, spec.batch * height)
        with chunked(spec.batch * height, threads) as line:
            row = line % height * 3
            image = line // height * spec.in_height
            lines = [(image + rows[row + i]) * (spec.in_width * channels) for i in range(2)]
            down = rows[row + 2]
            with B.serial(0, width) as column:
                left, right = (columns[column * 3 + i] * channels for i in range(2))
                across = columns[column * 3 + 2]

                def one(start: Expr, lanes: int) -> None:
                    def tap(place: Expr) -> Expr:
                        return load(x, place + start, lanes, "int32")

                    corners = [(tap(base + left), tap(base + right)) for base in lines]
                    store(y, (line * width + column) * channels + start, mixed(corners, across, down, lanes), lanes)

                for_each_vector(channels, lanes_full, 1, one)

    tables = [_table(spec.rows), _table(spec.columns)]
    arguments = [("x", spec.batch * spec.in_height * spec.in_width * channels, dtype)]
    arguments += [(axis, table.size, "int32") for axis, table in zip(("rows", "columns"), tables, strict=True)]
    func = prim_func([*arguments, ("y", size, dtype)], emit)
    return Kernel(name=name, isa=isa, func=func, constants=tuple(tables))


def _between(first: Expr, second: Expr, fraction: Expr, lanes: int) -> Expr:
    first = B.Bind(first)
    return B.Bind((first << splat(B.int32(FRACTION_BITS), lanes)) + (second - first) * splat(fraction, lanes))


def _shifted(acc: Expr, rounding: str, lanes: int) -> Expr:
    """Return acc / 2**22 rounded, as uint8; a weighted mean of bytes is a byte."""

    def number(value: int) -> Expr:
        return splat(B.int32(value), lanes)

    shift = 2 * FRACTION_BITS
    half = 1 << (shift - 1)
    addend = number(half) if rounding == "half_up" else number(half - 1) + ((acc >> number(shift)) & number(1))
    return ((acc + addend) >> number(shift)).astype(vector_type("uint8", lanes))


def _table(taps: LinearTaps) -> npt.NDArray[np.int32]:
    return np.asarray([taps.first, taps.second, taps.fractions], np.int32).T.reshape(-1)
