"""Bilinear resizing of int16 images in fixed point. Oracle: `numerics.int16_resize.resize_bilinear_int16`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ..numerics import LinearTaps
from ..numerics.int16_resize import FIXED_FRACTION_BITS
from .isa import lanes_of
from .spec import Kernel
from .vectors import Buffer, Expr, chunked, for_each_vector, load, prim_func, splat, store, vector_type, worthwhile

_OPERATIONS = 16
"""Elementary operations that a value costs, for the choice of threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Int16ResizeSpec:
    """int16 [batch, in_height, in_width, channels] to as many rows and columns as there are taps."""

    batch: int
    in_height: int
    in_width: int
    channels: int
    rows: LinearTaps
    columns: LinearTaps
    threads: int = 1


def int16_resize_bilinear(spec: Int16ResizeSpec, *, isa: str) -> Kernel:
    """Return the kernel that mixes each value's four neighbours, across in 32 bits and down in 64."""
    height, width, channels = len(spec.rows.first), len(spec.columns.first), spec.channels
    size = spec.batch * height * width * channels

    def emit(x: Buffer, rows: Buffer, columns: Buffer, y: Buffer) -> None:
        threads = worthwhile(spec.threads, size * _OPERATIONS, spec.batch * height)
        with chunked(spec.batch * height, threads) as line:
            row = line % height * 3
            image = line // height * spec.in_height
            lines = [(image + rows[row + i]) * (spec.in_width * channels) for i in range(2)]
            down = rows[row + 2].astype("int64")
            with B.serial(0, width) as column:
                at = [columns[column * 3 + i] * channels for i in range(2)]
                across = columns[column * 3 + 2]

                def one(start: Expr, lanes: int) -> None:
                    def between(base: Expr) -> Expr:
                        left, right = (B.Bind(load(x, base + side + start, lanes, "int32")) for side in at)
                        mixed = (left << splat(B.int32(FIXED_FRACTION_BITS), lanes)) + (right - left) * splat(across, lanes)
                        return B.Bind(mixed.astype(vector_type("int64", lanes)))

                    top, bottom = (between(base) for base in lines)
                    acc = B.Bind((top << splat(B.int64(FIXED_FRACTION_BITS), lanes)) + (bottom - top) * splat(down, lanes))
                    store(y, (line * width + column) * channels + start, _shifted(acc, lanes), lanes)

                for_each_vector(channels, lanes_of(isa) // 4, 1, one)

    tables = [_table(spec.rows), _table(spec.columns)]
    arguments = [("x", spec.batch * spec.in_height * spec.in_width * channels, "int16")]
    arguments += [(name, table.size, "int32") for name, table in zip(("rows", "columns"), tables, strict=True)]
    func = prim_func([*arguments, ("y", size, "int16")], emit)
    return Kernel(name="resize_bilinear.int16", isa=isa, func=func, constants=tuple(tables))


def _shifted(acc: Expr, lanes: int) -> Expr:
    """Return acc / 2**20, half away from 0, as int16; a weighted mean of int16 values is one."""

    def number(value: int) -> Expr:
        return splat(B.int64(value), lanes)

    shift = 2 * FIXED_FRACTION_BITS
    rounded = (acc + number(1 << (shift - 1)) + (acc >> number(63))) >> number(shift)
    return rounded.astype(vector_type("int16", lanes))


def _table(taps: LinearTaps) -> npt.NDArray[np.int32]:
    return np.asarray([taps.first, taps.second, taps.fractions], np.int32).T.reshape(-1)
