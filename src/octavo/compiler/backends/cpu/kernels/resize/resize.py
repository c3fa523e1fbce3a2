"""Bilinear resizing of images of 8 or 16 bits in integers. Oracle: `numerics.resize_bilinear`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......ir.composites.reduction import OpenTaps, taps_along
from ......numerics import FRACTION_BITS, LinearTaps
from ......numerics.quantized.resize import INT16_FRACTION_BITS
from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.vectors import (
    Buffer,
    Expr,
    chunked,
    for_each_vector,
    load,
    prim_func,
    splat,
    split,
    store,
    vector_type,
    worthwhile,
)

_OPERATIONS = {"uint8": 8, "int16": 16}
"""Elementary operations that a value costs, for the choice of threads."""

Corners = list[tuple[Expr, Expr]]
"""A result's neighbours, int32: the left and the right one of the upper line, then of the lower."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResizeSpec:
    """`dtype` [batch, in_height, in_width, channels] to as many rows and columns as there are taps; scale and zero point stay.

    Open taps, of both axes, are two more inputs behind x: tables of `linear_taps`.

    uint8 rounds "half_up" or "half_even", int16 "half_away".
    """

    batch: int
    in_height: int
    in_width: int
    channels: int
    rows: LinearTaps | OpenTaps
    columns: LinearTaps | OpenTaps
    dtype: Literal["uint8", "int16"] = "uint8"
    rounding: Literal["half_up", "half_even", "half_away"] = "half_even"
    threads: int = 1


def resize_bilinear(spec: ResizeSpec, *, isa: str) -> Kernel:
    """Return the kernel that reads each value's four neighbours and shifts their sum, weighted by the fractions of its place."""
    is_wide = spec.dtype == "int16"
    assert is_wide == (spec.rounding == "half_away"), "roundings go by the dtype"
    mixed = _mixed_in_64_bits if is_wide else _mixed
    height, width, channels = taps_along(spec.rows), taps_along(spec.columns), spec.channels
    size = spec.batch * height * width * channels

    def emit(x: Buffer, rows: Buffer, columns: Buffer, y: Buffer) -> None:
        threads = worthwhile(spec.threads, size * _OPERATIONS[spec.dtype], spec.batch * height)
        with chunked(spec.batch * height, threads) as line:
            number, place = split(line, height)
            row, image = place * 3, number * spec.in_height
            lines = [(image + rows[row + i]) * (spec.in_width * channels) for i in range(2)]
            down = rows[row + 2]
            with B.serial(0, width) as column:
                left, right = (columns[column * 3 + i] * channels for i in range(2))
                across = columns[column * 3 + 2]

                def one(start: Expr, lanes: int) -> None:
                    def tap(place: Expr) -> Expr:
                        return load(x, place + start, lanes, "int32")

                    corners = [(tap(base + left), tap(base + right)) for base in lines]
                    store(y, (line * width + column) * channels + start, mixed(spec, corners, across, down, lanes), lanes)

                for_each_vector(channels, lanes_of(isa) // (4 if is_wide else 1), 1, one)

    tables = [_table(taps) for taps in (spec.rows, spec.columns) if isinstance(taps, LinearTaps)]
    arguments = [("x", spec.batch * spec.in_height * spec.in_width * channels, spec.dtype)]
    arguments += [("rows", 3 * height, "int32"), ("columns", 3 * width, "int32")]
    func = prim_func([*arguments, ("y", size, spec.dtype)], emit)
    name = "resize_bilinear.int16" if is_wide else "resize_bilinear"
    return Kernel(name=name, isa=isa, func=func, constants=tuple(tables))


def _mixed(spec: ResizeSpec, corners: Corners, across: Expr, down: Expr, lanes: int) -> Expr:
    """Return bytes mixed in 32 bits."""
    top, bottom = [_between(left, right, across, lanes) for left, right in corners]
    acc = B.Bind((top << splat(B.int32(FRACTION_BITS), lanes)) + (bottom - top) * splat(down, lanes))
    return _shifted(acc, spec.rounding, lanes)


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


def _mixed_in_64_bits(_: ResizeSpec, corners: Corners, across: Expr, down: Expr, lanes: int) -> Expr:
    """Return int16 mixed across in 32 bits and down in 64; half away from 0, a weighted mean of int16 values is one."""

    def between(left: Expr, right: Expr) -> Expr:
        left = B.Bind(left)
        sum_ = (left << splat(B.int32(INT16_FRACTION_BITS), lanes)) + (right - left) * splat(across, lanes)
        return B.Bind(sum_.astype(vector_type("int64", lanes)))

    def number(value: int) -> Expr:
        return splat(B.int64(value), lanes)

    top, bottom = (between(left, right) for left, right in corners)
    acc = B.Bind((top << number(INT16_FRACTION_BITS)) + (bottom - top) * splat(down.astype("int64"), lanes))
    shift = 2 * INT16_FRACTION_BITS
    rounded = (acc + number(1 << (shift - 1)) + (acc >> number(63))) >> number(shift)
    return rounded.astype(vector_type("int16", lanes))


def _table(taps: LinearTaps) -> npt.NDArray[np.int32]:
    return np.asarray([taps.first, taps.second, taps.fractions], np.int32).T.reshape(-1)
