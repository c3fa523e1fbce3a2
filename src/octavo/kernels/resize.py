"""Bilinear resizing of uint8 images in integers. Oracle: `numerics.resize_bilinear`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ..numerics import FRACTION_BITS, LinearTaps
from .isa import lanes_of
from .spec import Kernel
from .vectors import Buffer, Expr, chunked, for_each_vector, load, prim_func, splat, store, vector_type, worthwhile

_OPERATIONS = 8
"""Elementary operations that a value costs, for the choice of threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResizeSpec:
    """uint8 [batch, in_height, in_width, channels] to as many rows and columns as there are taps."""

    batch: int
    in_height: int
    in_width: int
    channels: int
    rows: LinearTaps
    columns: LinearTaps
    rounding: Literal["half_up", "half_even"] = "half_even"
    threads: int = 1


def resize_bilinear(spec: ResizeSpec, *, isa: str) -> Kernel:
    """Return the kernel that reads each value's four neighbours and shifts their weighted sum by 22 bits."""
    height, width, channels = len(spec.rows.first), len(spec.columns.first), spec.channels
    size = spec.batch * height * width * channels
    lanes_full = lanes_of(isa)

    def emit(x: Buffer, rows: Buffer, columns: Buffer, y: Buffer) -> None:
        threads = worthwhile(spec.threads, size * _OPERATIONS, spec.batch * height)
        with chunked(spec.batch * height, threads) as line:
            row = line % height * 3
            image = line // height * spec.in_height
            lines = [(image + rows[row + i]) * (spec.in_width * channels) for i in range(2)]
            down = rows[row + 2]
            with B.serial(0, width) as column:
                at = [columns[column * 3 + i] * channels for i in range(2)]
                across = columns[column * 3 + 2]

                def one(start: Expr, lanes: int) -> None:
                    def tap(base: Expr, side: Expr) -> Expr:
                        return load(x, base + side + start, lanes, "int32")

                    top, bottom = [_between(tap(base, at[0]), tap(base, at[1]), across, lanes) for base in lines]
                    acc = B.Bind((top << splat(B.int32(FRACTION_BITS), lanes)) + (bottom - top) * splat(down, lanes))
                    store(y, (line * width + column) * channels + start, _shifted(acc, spec.rounding, lanes), lanes)

                for_each_vector(channels, lanes_full, 1, one)

    tables = [_table(spec.rows), _table(spec.columns)]
    arguments = [("x", spec.batch * spec.in_height * spec.in_width * channels, "uint8")]
    arguments += [(name, table.size, "int32") for name, table in zip(("rows", "columns"), tables, strict=True)]
    func = prim_func([*arguments, ("y", size, "uint8")], emit)
    return Kernel(name="resize_bilinear", isa=isa, func=func, constants=tuple(tables))


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
