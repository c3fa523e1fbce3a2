"""Average and max pooling of uint8 or int16 NHWC.

Oracles: `numerics.avg_pool2d`, `float_avg_pool2d`, `global_avg_pool2d`, `max_pool2d`.

Channels are the vectors, and the taps of a window the innermost loops, so that the accumulator stays in registers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import tvm
from tvm.script.ir_builder import tirx as B

from ......errors import CompileError
from ......ir.composites.outputs import Output
from ......numerics import FloatMeanParameters
from ......numerics.limits import HALF_AWAY_MAX_WINDOW, INT16_MAX_COUNT
from ......numerics.quant_params import INTEGER_RANGE
from ......numerics.quantized.pool2d import PoolRounding
from ......numerics.rounding.fixed_point import SHIFTS, Ties
from ......runtime.shapes import surely
from ......runtime.size import is_open
from ..language.fixed_point import clamped_integer
from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.rounding import clamped, requantized, rounded, scaled
from ..language.vectors import (
    Buffer,
    Expr,
    chunked,
    for_each_vector,
    interior,
    kept,
    load,
    prim_func,
    splat,
    split,
    store,
    vector_type,
    worthwhile,
)
from .float_mean import accumulated, float_mean, is_near_tie

_MAX_WINDOW = {"uint8": 1 << 23, "int16": INT16_MAX_COUNT // 2}
"""Pixels of a window whose sum of differences from a zero point is sure to fit int32."""

_HALF_AWAY = 1 + 2.0**-22
"""Factor that makes rounding half to even round half away from 0.

It moves a tie away from 0 by more than the two roundings to float32 can take back (2**-24 each), and any other mean by less than
its distance from the next tie, which is at least 1 / (2 * pixels) of 255.5.
"""

_MAX_WINDOW_UINT16 = 257
"""Pixels whose sum, each up to 255, is sure to fit uint16: half the vectors of int32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool2dSpec:
    """Average or max pooling of NHWC, of `dtype` to itself.

    `multiplier` is float32 in_scale / out_scale (1.0 for "max", which leaves scale and zero point as they are). Padding never
    counts in a maximum; in an average it counts (as real 0) only if `count_include_pad`. `rounding` is that of an average:
    "half_even" of the real mean; "half_away", for a multiplier of 1 only, of the mean of x - input_zero_point (of int16: of the
    integers as stored); or, for uint8 alone, "half_even_stored", where a tie becomes an even integer as stored (which differs
    where the zero point is odd); or one of `SHIFTS`, exact with a power of two as the multiplier. With `float_mean` an
    average of uint8 is formed in float32, whatever `rounding` says; `multiplier` is then its ratio.
    """

    kind: Literal["avg", "max"]
    batch: int
    in_height: int
    in_width: int
    channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    out_height: int
    out_width: int
    count_include_pad: bool = False
    multiplier: float = 1.0
    input_zero_point: int
    output: Output
    dtype: Literal["uint8", "int16"] = "uint8"
    rounding: PoolRounding = "half_even"
    float_mean: FloatMeanParameters | None = None
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class _Taps:
    """One axis of a window: input index of tap i is start + i * dilation; taps [first; last) lie inside the image."""

    start: Expr
    first: Expr
    last: Expr

    @property
    def count(self) -> Expr:
        return self.last - self.first


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A row of outputs, counted through the batch: the first row of its image among the inputs, and its windows' taps.

    Where all of these are written out, `starts` are the elements with which the rows of inputs begin that they read.
    """

    row: Expr
    first: Expr
    taps: _Taps
    starts: tuple[Expr, ...] = ()


def pool2d(spec: Pool2dSpec, *, isa: str) -> Kernel:
    """Return the pooling kernel; global average pooling is the window that covers the image.

    Threads share the rows of the output, or the channels where there is only one pixel.

    Raises
    ------
    CompileError
        If the window holds so many pixels that their sum could overflow int32.
    """
    _check(spec)
    is_wide = spec.dtype == "int16"
    lanes = lanes_of(isa) // (8 if spec.rounding in SHIFTS else 4 if is_wide else 1)
    rows = spec.batch * spec.out_height
    operations = rows * spec.out_width * spec.channels * spec.kernel[0] * spec.kernel[1]

    def emit(x: Buffer, y: Buffer) -> None:
        with chunked(rows, worthwhile(spec.threads, operations, rows)) as row:
            _emit_row(spec, x, y, row, lanes)

    def emit_one_pixel(x: Buffer, y: Buffer) -> None:
        vectors, rest = divmod(spec.channels, lanes)

        def pixel(channel: Expr, now: int) -> None:
            _emit_pixel(spec, x, y, _row_of(spec, 0), _taps(spec, 1, 0), 0, channel, now)

        if vectors:
            with chunked(vectors, worthwhile(spec.threads, operations, vectors)) as index:
                pixel(index * lanes, lanes)
        if rest:
            pixel(vectors * lanes, rest)

    arguments = [
        ("x", spec.batch * spec.in_height * spec.in_width * spec.channels, spec.dtype),
        ("y", rows * spec.out_width * spec.channels, spec.dtype),
    ]
    one_pixel = rows * spec.out_width == 1
    covers = one_pixel and spec.kernel == (spec.in_height, spec.in_width) and not any(spec.padding)
    name = f"{'global_' if covers else ''}{spec.kind}_pool2d{'.int16' if is_wide else ''}"
    return Kernel(name=name, isa=isa, func=prim_func(arguments, emit_one_pixel if one_pixel else emit))


def _check(spec: Pool2dSpec) -> None:
    pixels, most = spec.kernel[0] * spec.kernel[1], _MAX_WINDOW[spec.dtype]
    if is_open(pixels):
        assert spec.dtype == "uint8", "the rule sees to it"
        assert spec.rounding != "half_away", "the rule sees to it"
        return
    if pixels > most:
        raise CompileError(
            f"{spec.kind}_pool2d: a window of {spec.kernel[0]}x{spec.kernel[1]} pixels can overflow the int32 sum, "
            f"which holds {most} at most: use a smaller window"
        )
    if spec.dtype == "int16":
        assert spec.rounding != "half_even_stored", "which 8-bit averages alone have"
        assert spec.float_mean is None, "which 8-bit averages alone have"
    elif spec.rounding == "half_away" and (spec.multiplier != 1.0 or pixels > HALF_AWAY_MAX_WINDOW):
        raise CompileError(
            f"{spec.kind}_pool2d: half_away takes a multiplier of 1 and windows of {HALF_AWAY_MAX_WINDOW} pixels at most, got "
            f"{spec.multiplier} and {spec.kernel[0]}x{spec.kernel[1]}: use half_even"
        )


def _emit_row(spec: Pool2dSpec, x: Buffer, y: Buffer, row: Expr, lanes: int) -> None:
    """Emit one row of the output; `row` counts through the batch."""
    place = _row_of(spec, row)

    def pixel(column: Expr, place: _Row, horizontal: _Taps) -> None:
        for_each_vector(
            spec.channels, lanes, 1, lambda channel, now: _emit_pixel(spec, x, y, place, horizontal, column, channel, now)
        )

    if not is_open(spec.in_width) or is_open(spec.kernel[0] * spec.kernel[1]):
        with B.serial(0, spec.out_width) as column:
            pixel(column, place, _taps(spec, 1, column))
        return
    # Most windows lie inside: their taps are written out. The others stand on both sides of these.
    first, last = _complete_columns(spec, place.taps)
    complete = _complete_row(spec, place)
    with B.serial(first, last) as column:
        pixel(column, complete, replace(_taps(spec, 1, column), first=0, last=spec.kernel[1]))
    if all(isinstance(_taps(spec, axis, 0).last, int) for axis in range(2)):
        return
    with B.serial(0, spec.out_width - (last - first)) as index:
        column = kept(index + B.Select(index < first, B.int32(0), last - first), "int32")
        pixel(column, place, _taps(spec, 1, column))


def _complete_columns(spec: Pool2dSpec, vertical: _Taps) -> tuple[Expr, Expr]:
    """Emit [first; last) of the columns whose windows lie inside the image; none of a row of which some do not."""
    width, stride, before = B.int32(0) + spec.out_width, spec.strides[1], spec.padding[1]
    reach = B.int32(0) + spec.in_width + (before - (spec.kernel[1] - 1) * spec.dilation[1] - 1)
    first = B.int32(-(-before // stride))
    last = B.min(B.truncdiv(B.max(reach + stride, B.int32(0)), B.int32(stride)), width)
    # Kept: TVM's passes would see what they are made of in every address, and take seconds over it.
    last = kept(B.Select(B.int32(0) + vertical.count == spec.kernel[0], last, B.int32(0)), "int32")
    return kept(B.min(first, last), "int32"), last


def _complete_row(spec: Pool2dSpec, place: _Row) -> _Row:
    """Return the row with all taps of its windows."""
    width = spec.in_width * spec.channels
    top = place.first + place.taps.start
    starts = tuple(B.Bind((top + row * spec.dilation[0]) * width) for row in range(spec.kernel[0]))
    return replace(place, taps=replace(place.taps, first=0, last=spec.kernel[0]), starts=starts)


def _row_of(spec: Pool2dSpec, row: Expr) -> _Row:
    """Emit where a row of the output lies, and the taps that its windows have: a quotient for each pixel would take longer."""
    image, out_row = (0, row) if spec.batch == 1 else split(row, spec.out_height)
    return _Row(row=row, first=image * spec.in_height, taps=_taps(spec, 0, out_row))


def _emit_pixel(
    spec: Pool2dSpec, x: Buffer, y: Buffer, place: _Row, horizontal: _Taps, column: Expr, channel: Expr, lanes: int
) -> None:
    """Emit `lanes` channels of one output pixel."""
    row, vertical = place.row, place.taps
    average = spec.kind == "avg"
    pixels = spec.kernel[0] * spec.kernel[1]
    is_wide = spec.dtype == "int16"
    is_small = not is_open(pixels) and pixels <= _MAX_WINDOW_UINT16
    acc_dtype = spec.dtype if not average else "uint16" if is_small and not is_wide else "int32"
    acc = B.alloc_buffer((lanes,), acc_dtype, scope="local")
    store(acc, 0, splat(tvm.tirx.const(0 if average else INTEGER_RANGE[spec.dtype][0], acc_dtype), lanes), lanes)

    @contextmanager
    def taps() -> Generator[Expr, None, None]:
        with B.serial(vertical.first, vertical.last) as i, B.serial(horizontal.first, horizontal.last) as j:
            in_row = place.first + vertical.start + i * spec.dilation[0]
            pixel = in_row * spec.in_width + horizontal.start + j * spec.dilation[1]
            yield load(x, pixel * spec.channels + channel, lanes)

    def add(tap: Expr) -> None:
        wide = tap.astype(vector_type(acc_dtype, lanes))
        store(acc, 0, load(acc, 0, lanes) + wide if average else B.max(load(acc, 0, lanes), wide), lanes)

    if place.starts:
        left = B.Bind(horizontal.start * spec.channels)
        for start, tap in itertools.product(place.starts, range(spec.kernel[1])):
            add(load(x, start + left + tap * spec.dilation[1] * spec.channels + channel, lanes))
    else:
        with taps() as tap:
            add(tap)
    out = (row * spec.out_width + column) * spec.channels + channel
    if not average:
        store(y, out, clamped(load(acc, 0, lanes), spec.output, spec.dtype, lanes), lanes)
        return
    count = vertical.count * horizontal.count
    if is_wide and spec.rounding == "half_away":
        store(y, out, _quotient(spec, load(acc, 0, lanes), count, lanes), lanes)
        return
    centered = load(acc, 0, lanes, "int32") - splat(count * B.int32(spec.input_zero_point), lanes)
    pixels = pixels if spec.count_include_pad else count
    pixels = B.int32(0) + pixels if is_open(pixels) else pixels
    if spec.rounding in SHIFTS:
        store(y, out, _shifted(spec, centered, pixels, SHIFTS[spec.rounding], lanes), lanes)
        return
    if spec.float_mean is None:
        multiplier, stored_even = _multiplier(spec, pixels, lanes), spec.rounding == "half_even_stored"
        store(y, out, requantized(centered, multiplier, spec.output, lanes, stored_even=stored_even, dtype=spec.dtype), lanes)
    else:
        _emit_float_mean(spec, spec.float_mean, centered, pixels, taps, lambda value: store(y, out, value, lanes), lanes)


def _emit_float_mean(
    spec: Pool2dSpec,
    parameters: FloatMeanParameters,
    centered: Expr,
    pixels: Expr,
    taps: Callable[[], AbstractContextManager[Expr]],
    keep: Callable[[Expr], None],
    lanes: int,
) -> None:
    """Emit the average of exact sums, and beside ties that of sums in float32."""
    total = B.alloc_buffer((lanes,), "float32", scope="local")
    multiplier = _multiplier(spec, pixels, lanes)
    if isinstance(multiplier, float):
        multiplier = splat(B.float32(multiplier), lanes)
    mean = B.Bind(scaled(centered, multiplier, None, lanes))
    with B.If(is_near_tie(mean, parameters, spec.output, spec.kernel[0] * spec.kernel[1], lanes)):
        with B.Then():
            store(total, 0, splat(B.float32(0), lanes), lanes)
            with taps() as tap:
                accumulated(total, tap, parameters, lanes)
            count = B.float32(float(pixels)) if isinstance(pixels, int) else B.max(pixels, B.int32(1)).astype("float32")
            keep(float_mean(load(total, 0, lanes), parameters, count, spec.output, lanes))
        with B.Else():
            out = spec.output
            keep(rounded(mean, zero_point=out.zero_point, qmin=out.qmin, qmax=out.qmax, dtype="uint8", lanes=lanes))


def _shifted(spec: Pool2dSpec, total: Expr, pixels: Expr, ties: Ties, lanes: int) -> Expr:
    """Return total * multiplier / pixels, exact and rounded once; the multiplier is a power of two."""

    def number(value: Expr) -> Expr:
        return splat(value, lanes)

    zero, one = number(B.int64(0)), number(B.int64(1))
    left, right = (B.int64(math.ceil(min(factor, 2.0**30))) for factor in (spec.multiplier, 1 / spec.multiplier))
    value = B.Bind(total.astype(vector_type("int64", lanes)) * number(left))
    count = B.int64(pixels) if isinstance(pixels, int) else B.max(pixels, B.int32(1)).astype("int64")
    divisor = B.Bind(number(B.Bind(count * right)))
    size = B.Select(value < zero, zero - value, value)
    doubled = B.Bind(size + size + divisor)
    away = B.Bind(B.truncdiv(doubled, divisor + divisor))
    if ties != "half_away":
        less = B.Select(value < zero, one, zero) if ties == "half_up" else B.bitwise_and(away, one)
        away = B.Bind(away - B.Select(away * (divisor + divisor) < doubled, zero, less))
    return clamped_integer(B.Select(value < zero, zero - away, away), spec.output, lanes, spec.dtype)


def _multiplier(spec: Pool2dSpec, pixels: Expr, lanes: int) -> float | Expr:
    """Return the factor from a sum to its mean, in steps of the result."""
    multiplier = np.float32(_HALF_AWAY if spec.rounding == "half_away" else spec.multiplier)
    if isinstance(pixels, int):
        return float(multiplier / np.float32(pixels))
    # A float32 division of the CPU is the same quotient that NumPy forms; windows at the border have other counts.
    quotient = B.float32(float(multiplier)) / B.max(pixels, B.int32(1)).astype("float32")
    return splat(B.Bind(quotient), lanes)


def _quotient(spec: Pool2dSpec, total: Expr, count: Expr, lanes: int) -> Expr:
    """Return total / count, half away from 0, as int16: float32 can't tell so many ties from their neighbours."""
    count = splat(B.Bind(B.max(count, B.int32(1))), lanes)
    half = count >> splat(B.int32(1), lanes)
    total = B.Bind(total)
    mean = B.truncdiv(B.Select(total > splat(B.int32(0), lanes), total + half, total - half), count)
    low, high = (splat(B.int32(bound), lanes) for bound in (spec.output.qmin, spec.output.qmax))
    return B.min(B.max(mean, low), high).astype(vector_type("int16", lanes))


def _taps(spec: Pool2dSpec, axis: int, at: Expr) -> _Taps:
    """Return the taps of output index `at` along one axis (0 rows, 1 columns): plain numbers where no window leaves the image."""
    taps, stride, dilation, before = spec.kernel[axis], spec.strides[axis], spec.dilation[axis], spec.padding[axis]
    extent, out = ((spec.in_height, spec.out_height), (spec.in_width, spec.out_width))[axis]
    start = at * stride - before
    stays = before == spec.padding[axis + 2] == 0 and out == (extent - (taps - 1) * dilation - 1) // stride + 1
    always = stays or (before == 0 and surely(lambda: (out - 1) * stride + (taps - 1) * dilation < extent))
    first, last = interior(start, taps, dilation, extent, always=always)
    return _Taps(start=start, first=first, last=last)
