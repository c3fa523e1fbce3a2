"""Convolution of any kernel, stride, padding, dilation and group count, in plain TIR. Oracle: `numerics.conv2d`.

No intrinsic of any CPU: vectors of output channels, which LLVM maps to what the target has. The dispatcher that chooses between
this and the kernels of an ISA lies elsewhere, as does the proof that the int32 accumulators do not overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from .......ir.composites.outputs import FloatOutput, FunctionOutput, Output, SumOutput
from .......runtime.size import is_open
from ...language.float_result import float_result, function_value, in_steps, input_scale, input_zero_point
from ...language.isa import GENERIC
from ...language.kernel import Kernel
from ...language.rounding import requantized, rounded, scaled
from ...language.vectors import (
    Buffer,
    Expr,
    bound,
    chunked,
    for_open_tiles,
    interior,
    load,
    prim_func,
    splat,
    split,
    store,
    worthwhile,
)
from ..layer_function import INDICES, PARAMETERS, given_at_run_time, weights_of_image
from ..spec import Conv2dSpec

_LANES = 16
"""Output channels of one accumulator: int32 vectors that AVX-512 holds in one register, AVX2 in two, NEON and SSE in four."""

_PIXELS = 4
"""Output pixels computed together from one load of weights; with `_LANES` they fill 16 of NEON's 32 registers."""


_DTYPES = {Output: "uint8", FunctionOutput: "uint8", FloatOutput: "float32", SumOutput: "int32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Buffers:
    x: Buffer
    parameters: Buffer | None
    indices: Buffer | None
    weight: Buffer
    bias: Buffer
    multiplier: Buffer
    function: dict[str, Buffer]
    y: Buffer


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tile:
    """A run of `lanes` output channels from `channel` on, whose packed weights begin at `weights`, and constants at `numbers`.

    It reads the input channels from `in_channel` on: all of its group, or for a depthwise convolution one for each lane.
    """

    channel: Expr
    in_channel: Expr
    weights: Expr
    numbers: Expr
    lanes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Columns:
    """Output columns [interior; right) whose taps all lie inside the image; [0; interior) and from `right` on some do not."""

    interior: int
    right: int


def conv2d_generic(
    spec: Conv2dSpec,
    *,
    weight: npt.NDArray[np.int8],
    weight_zero_point: int | npt.NDArray[np.int32],
    bias: npt.NDArray[np.int32 | np.float32],
    multiplier: npt.NDArray[np.float32],
) -> Kernel:
    """Return the convolution kernel for any LLVM target.

    Parameters
    ----------
    spec
        What to compute.
    weight
        int8 HWIO, (kernel_h, kernel_w, in_channels / groups, out_channels).
    weight_zero_point
        A number or int32 (out_channels,).
    bias
        int32 (out_channels,), at scale in_scale * weight_scale; float32 where the output takes it so.
    multiplier
        float32 (out_channels,), in_scale * weight_scale / out_scale; see `octavo.kernels.conv2d` for a FloatOutput.

    Returns
    -------
    Kernel
        Its constants are the packed weights less their zero points (int8, or int16 where that needs nine bits), bias, multiplier,
        and those of a FunctionOutput.
    """
    group_in, group_out = spec.in_channels // spec.groups, spec.out_channels // spec.groups
    channels = spec.out_channels * spec.stack
    assert weight.shape == (*spec.kernel, group_in, channels), f"weights {weight.shape} do not fit {spec}"
    centered = weight.astype(np.int32) - np.asarray(weight_zero_point, np.int32)
    depthwise = group_in == 1 and group_out == 1
    run = spec.out_channels if depthwise else group_out  # channels that may share a vector
    packed = _pack(centered, run)
    bias_dtype = "float32" if spec.output.real_bias else "int32"
    own = spec.output.constants() if isinstance(spec.output, FunctionOutput) else {}
    constants = (packed, np.ascontiguousarray(bias, bias_dtype), np.ascontiguousarray(multiplier, np.float32))
    constants += tuple(own.values())
    given = given_at_run_time(spec)

    def emit(x: Buffer, *others: Buffer) -> None:
        run_time = {label: buffer for (label, *_), buffer in zip(given, others, strict=False)}
        weight, bias, multiplier, *rest, y = others[len(given) :]
        read = {"parameters": run_time.get(PARAMETERS), "indices": run_time.get(INDICES)}
        scaling: Any = {"bias": bias, "multiplier": multiplier, "function": dict(zip(own, rest, strict=True))}
        _emit(spec, _Buffers(x=x, **read, weight=weight, **scaling, y=y), run=run, depthwise=depthwise)

    arguments = [
        ("x", spec.batch * spec.in_height * spec.in_width * spec.in_channels, "uint8"),
        *given,
        ("weight", packed.size, str(packed.dtype)),
        ("bias", channels, bias_dtype),
        ("multiplier", channels, "float32"),
        *((label, values.size, "float32") for label, values in own.items()),
        ("y", spec.batch * spec.out_height * spec.out_width * spec.out_channels, _DTYPES[type(spec.output)]),
    ]
    name = "conv2d.depthwise" if depthwise else "conv2d.grouped" if spec.groups > 1 else "conv2d.direct"
    return Kernel(name=name, isa=GENERIC, func=prim_func(arguments, emit), constants=constants)


def _pack(weight: npt.NDArray[np.int32], run: int) -> npt.NDArray[Any]:
    """Return the weights of each tile of output channels one after the other, so that a tile reads them from front to back."""
    tiles: list[npt.NDArray[np.int32]] = []
    for start in range(0, weight.shape[3], run):
        for first in range(start, start + run, _LANES):
            tiles.append(weight[..., first : min(first + _LANES, start + run)].ravel())
    flat = np.concatenate(tiles)
    low, high = (int(flat.min()), int(flat.max())) if flat.size else (0, 0)
    fits = low >= -128 and high <= 127
    # Nine bits at most, for an 8-bit zero point.
    assert fits or (low >= -32768 and high <= 32767), "weights less their zero points must fit int16"
    return flat.astype(np.int8 if fits else np.int16)


def _emit(spec: Conv2dSpec, buffers: _Buffers, *, run: int, depthwise: bool) -> None:
    """Emit the loops over rows and tiles; threads share the rows, or the tiles where rows are too few (a dense layer)."""
    rows = spec.batch * spec.out_height
    group_in = spec.in_channels // spec.groups
    taps = spec.kernel[0] * spec.kernel[1] * group_in
    operations = rows * spec.out_width * spec.out_channels * taps
    tiles, rest = divmod(run, _LANES)

    def tile(group: Expr, index: Expr, lanes: int) -> _Tile:
        channel = group * run + index * _LANES
        read = channel if depthwise else group * group_in
        return _Tile(channel=channel, in_channel=read, weights=channel * taps, numbers=channel, lanes=lanes)

    def every_tile(group: Expr, threads: int, body: Callable[[_Tile], None]) -> None:
        if tiles:
            with chunked(tiles, worthwhile(threads, operations, tiles)) as index:
                body(tile(group, index, _LANES))
        if rest:
            body(tile(group, tiles, rest))

    row_threads = worthwhile(spec.threads, operations, rows)
    groups = spec.out_channels // run
    if row_threads > 1 or spec.threads == 1 or groups > 1:
        with chunked(rows, row_threads) as row, B.serial(0, groups) as group:
            every_tile(group, 1, lambda now: _emit_row(spec, buffers, now, row, depthwise=depthwise))
        return

    def all_rows(now: _Tile) -> None:
        with B.serial(0, rows) as row:
            _emit_row(spec, buffers, now, row, depthwise=depthwise)

    every_tile(0, spec.threads, all_rows)


def _emit_row(spec: Conv2dSpec, buffers: _Buffers, tile: _Tile, row: Expr, *, depthwise: bool) -> None:
    """Emit one output row of one tile: border columns one by one, those between them in blocks."""
    if spec.stack > 1:
        image = B.floordiv(row, spec.out_height)
        own = B.Bind(weights_of_image(spec, buffers.indices, image) * spec.out_channels)
        tile = replace(tile, weights=tile.weights + own * spec.in_channels, numbers=tile.numbers + own)

    def pixels(column: Expr, count: int, *, border: bool) -> None:
        _emit_pixels(spec, buffers, tile, row, column, count, depthwise=depthwise, border=border)

    if is_open(spec.in_width):
        _for_open_columns(spec, pixels)
        return
    columns = _columns(spec)
    if columns.interior:
        with B.serial(0, columns.interior) as column:
            pixels(column, 1, border=True)
    blocks, rest = divmod(columns.right - columns.interior, _PIXELS)
    if blocks:
        with B.serial(0, blocks) as block:
            pixels(columns.interior + block * _PIXELS, _PIXELS, border=False)
    if rest:
        pixels(columns.right - rest, rest, border=False)
    if columns.right < spec.out_width:
        with B.serial(columns.right, spec.out_width) as column:
            pixels(column, 1, border=True)


def _for_open_columns(spec: Conv2dSpec, pixels: Callable[..., None]) -> None:
    """Emit the columns of a row whose number is known when the kernel runs."""
    stride, left = spec.strides[1], spec.padding[1]
    reach = (spec.kernel[1] - 1) * spec.dilation[1]
    width = bound(spec.out_width)
    first = B.Bind(B.min(B.int32(max(0, -(-left // stride))), width))
    right = (spec.in_width - 1 - reach + left) // stride + 1
    right = B.Bind(B.min(B.max(B.int32(0) + right, first), width))
    with B.serial(0, first) as column:
        pixels(column, 1, border=True)
    for_open_tiles(right - first, _PIXELS, lambda column, count: pixels(B.Bind(first + column), count, border=False))
    with B.serial(0, width - right) as column:
        pixels(B.Bind(right + column), 1, border=True)


def _columns(spec: Conv2dSpec) -> _Columns:
    stride, left = spec.strides[1], spec.padding[1]
    reach = (spec.kernel[1] - 1) * spec.dilation[1]
    interior = min(-(-left // stride), spec.out_width)
    right = (spec.in_width - 1 - reach + left) // stride + 1
    return _Columns(interior=interior, right=min(max(right, interior), spec.out_width))


def _emit_pixels(
    spec: Conv2dSpec,
    buffers: _Buffers,
    tile: _Tile,
    row: Expr,
    column: Expr,
    count: int,
    *,
    depthwise: bool,
    border: bool,
) -> None:
    """Emit `count` neighbouring output pixels of one tile; only at a border do columns of taps need checking."""
    lanes = tile.lanes
    image, out_row = (0, row) if spec.batch == 1 else split(row, spec.out_height)
    top, left = out_row * spec.strides[0] - spec.padding[0], column * spec.strides[1] - spec.padding[1]
    group_in = 1 if depthwise else spec.in_channels // spec.groups
    acc = B.alloc_buffer((count * lanes,), "int32", scope="local")
    for p in range(count):
        start = splat(B.int32(0), lanes) if spec.output.real_bias else load(buffers.bias, tile.numbers, lanes)
        store(acc, p * lanes, start, lanes)
    scale_of = None
    zero_points: list[Expr] = []
    if buffers.parameters is not None:
        pixel_of = row * spec.out_width + column
        scale_of = [B.Bind(B.floordiv(pixel_of + p, spec.pixels_per_scale)) for p in range(count)]
        zero_points = [B.Bind(input_zero_point(buffers.parameters, index)) for index in scale_of]
    interior_rows = interior(top, spec.kernel[0], spec.dilation[0], spec.in_height, always=_interior_rows(spec))
    interior_columns = interior(left, spec.kernel[1], spec.dilation[1], spec.in_width, always=not border)
    with B.serial(*interior_rows) as i, B.serial(*interior_columns) as j, B.serial(0, group_in) as k:
        tap = (i * spec.kernel[1] + j) * group_in + k
        weight = B.Bind(load(buffers.weight, tile.weights + tap * lanes, lanes, "int32"))
        in_row = (image * spec.in_height + top + i * spec.dilation[0]) * spec.in_width
        for p in range(count):
            pixel = in_row + left + p * spec.strides[1] + j * spec.dilation[1]
            at = pixel * spec.in_channels + tile.in_channel + k
            zero_point = B.int32(spec.input_zero_point) if scale_of is None else zero_points[p]
            value = _centered(buffers.x, at, zero_point, lanes, depthwise=depthwise)
            store(acc, p * lanes, load(acc, p * lanes, lanes) + value * weight, lanes)
    for p in range(count):
        out = ((row * spec.out_width) + column + p) * spec.out_channels + tile.channel
        multiplier = load(buffers.multiplier, tile.numbers, lanes)
        if isinstance(spec.output, SumOutput):
            value = load(acc, p * lanes, lanes)
        elif isinstance(spec.output, FloatOutput):
            bias, scale = (
                load(buffers.bias, tile.numbers, lanes),
                None if scale_of is None else input_scale(buffers.parameters, scale_of[p]),
            )
            value = float_result(spec.output, load(acc, p * lanes, lanes), multiplier, bias, scale, lanes)
        elif isinstance(spec.output, FunctionOutput):
            bias, out_of = load(buffers.bias, tile.numbers, lanes), spec.output.integers
            own = {label: load(buffer, tile.numbers, lanes) for label, buffer in buffers.function.items()}
            factor = own.pop("factor", None)
            value = scaled(load(acc, p * lanes, lanes), multiplier, bias, lanes)
            value = in_steps(spec.output, function_value(spec.output, value, list(own.values()), lanes), factor, lanes)
            bounds: Any = {"zero_point": out_of.zero_point, "qmin": out_of.qmin, "qmax": out_of.qmax}
            value = rounded(value, **bounds, dtype="uint8", lanes=lanes)
        else:
            bias = load(buffers.bias, tile.numbers, lanes) if spec.output.real_bias else None
            value = requantized(load(acc, p * lanes, lanes), multiplier, spec.output, lanes, bias=bias)
        store(buffers.y, out, value, lanes)


def _centered(x: Buffer, at: Expr, zero_point: Expr, lanes: int, *, depthwise: bool) -> Expr:
    """Return x - zero_point as int32: one value for each lane if depthwise, else one value for them all."""
    if depthwise:
        return load(x, at, lanes, "int32") - splat(zero_point, lanes)
    return splat(x[at].astype("int32") - zero_point, lanes)


def _interior_rows(spec: Conv2dSpec) -> bool:
    return spec.padding[0] == 0 and spec.padding[2] == 0
