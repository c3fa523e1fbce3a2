"""Bilinear resizing of integer images in float32. Oracle: `numerics.float_resize_bilinear`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import Output
from ......ir.composites.reduction import OpenTaps, taps_along
from ......numerics.quantized.resize import FloatTaps
from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.rounding import rounded, unfused
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
    tirx,
    vector_type,
    worthwhile,
)

_OPERATIONS = 24
"""Elementary operations that a value costs, for the choice of threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatResizeSpec:
    """uint8 [batch, in_height, in_width, channels] to as many rows and columns as there are taps.

    Open taps, of both axes, are four more inputs behind x: tables of `float_tap_places`, and of `float_tap_weights`.
    """

    batch: int
    in_height: int
    in_width: int
    channels: int
    rows: FloatTaps | OpenTaps
    columns: FloatTaps | OpenTaps
    in_scale: float
    input_zero_point: int
    out_scale: float
    output: Output
    cuts_off: bool = False
    threads: int = 1


def float_resize_bilinear(spec: FloatResizeSpec, *, isa: str) -> Kernel:
    """Return the kernel that dequantizes each value's four neighbours, weighs and adds them one after another, and quantizes."""
    height, width, channels = taps_along(spec.rows), taps_along(spec.columns), spec.channels
    size = spec.batch * height * width * channels

    def emit(x: Buffer, rows: Buffer, columns: Buffer, down: Buffer, across: Buffer, y: Buffer) -> None:
        threads = worthwhile(spec.threads, size * _OPERATIONS, spec.batch * height)
        with chunked(spec.batch * height, threads) as line, B.serial(0, width) as column:
            number, row = split(line, height)
            image = number * spec.in_height
            corners = [(i, j) for i in range(2) for j in range(2)]
            starts = [((image + rows[row * 2 + i]) * spec.in_width + columns[column * 2 + j]) * channels for i, j in corners]
            weights = [B.Bind(down[row * 2 + i] * across[column * 2 + j]) for i, j in corners]

            def one(start: Expr, lanes: int) -> None:
                terms = [
                    unfused(_real(spec, load(x, at + start, lanes, "int32"), lanes) * splat(weight, lanes), lanes)
                    for at, weight in zip(starts, weights, strict=True)
                ]
                total = terms[0] + terms[1] + terms[2] + terms[3]
                steps = total / splat(B.float32(float(np.float32(spec.out_scale))), lanes)
                out = spec.output
                steps = tirx.trunc(steps) if spec.cuts_off else steps
                result = rounded(steps, zero_point=out.zero_point, qmin=out.qmin, qmax=out.qmax, dtype="uint8", lanes=lanes)
                store(y, (line * width + column) * channels + start, result, lanes)

            for_each_vector(channels, lanes_of(isa), 1, one)

    known = [taps for taps in (spec.rows, spec.columns) if isinstance(taps, FloatTaps)]
    places = [np.asarray([taps.first, taps.second], np.int32).T.reshape(-1) for taps in known]
    weights = [np.asarray([taps.first_weights, taps.second_weights], np.float32).T.reshape(-1) for taps in known]
    arguments = [
        ("x", spec.batch * spec.in_height * spec.in_width * channels, "uint8"),
        ("rows", 2 * height, "int32"),
        ("columns", 2 * width, "int32"),
        ("down", 2 * height, "float32"),
        ("across", 2 * width, "float32"),
        ("y", size, "uint8"),
    ]
    return Kernel(name="resize_bilinear.float32", isa=isa, func=prim_func(arguments, emit), constants=(*places, *weights))


def _real(spec: FloatResizeSpec, integers: Expr, lanes: int) -> Expr:
    centered = integers - splat(B.int32(spec.input_zero_point), lanes)
    return centered.astype(vector_type("float32", lanes)) * splat(B.float32(float(np.float32(spec.in_scale))), lanes)
