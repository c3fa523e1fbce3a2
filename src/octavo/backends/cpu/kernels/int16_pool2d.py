"""Average and max pooling of int16 NHWC. Oracles: `numerics.avg_pool2d` with "half_away" or "half_even", `max_pool2d`."""

from __future__ import annotations

import numpy as np
from tvm.script.ir_builder import tirx as B

from ....errors import CompileError
from ....numerics.limits import INT16_MAX_COUNT
from .isa import lanes_of
from .rounding import rounded
from .spec import Kernel, Pool2dSpec
from .vectors import Buffer, Expr, chunked, for_each_vector, inside, load, prim_func, splat, store, vector_type, worthwhile


def int16_pool2d(spec: Pool2dSpec, *, isa: str) -> Kernel:
    """Return the pooling kernel; `spec` states int16 zero points and bounds.

    Rounding "half_away" is that of the integers as stored and takes a multiplier of 1 only; else it is "half_even".

    Raises
    ------
    CompileError
        If the sum of a window could overflow int32.
    """
    if spec.kernel[0] * spec.kernel[1] > INT16_MAX_COUNT // 2:
        raise CompileError(
            f"{spec.kind}_pool2d: the sum of {spec.kernel[0]}x{spec.kernel[1]} int16 values can overflow int32: "
            "use a smaller window"
        )
    assert spec.rounding != "half_even_stored", "16-bit means have a kernel of their own"
    rows = spec.batch * spec.out_height
    operations = rows * spec.out_width * spec.channels * spec.kernel[0] * spec.kernel[1]

    def emit(x: Buffer, y: Buffer) -> None:
        with chunked(rows, worthwhile(spec.threads, operations, rows)) as row, B.serial(0, spec.out_width) as column:
            for_each_vector(
                spec.channels, lanes_of(isa) // 4, 1, lambda channel, lanes: _emit_pixel(spec, x, y, row, column, channel, lanes)
            )

    arguments = [
        ("x", spec.batch * spec.in_height * spec.in_width * spec.channels, "int16"),
        ("y", rows * spec.out_width * spec.channels, "int16"),
    ]
    return Kernel(name=f"{spec.kind}_pool2d.int16", isa=isa, func=prim_func(arguments, emit))


def _emit_pixel(spec: Pool2dSpec, x: Buffer, y: Buffer, row: Expr, column: Expr, channel: Expr, lanes: int) -> None:
    image, out_row = (0, row) if spec.batch == 1 else (row // spec.out_height, row % spec.out_height)
    taps = [
        (at * spec.strides[axis] - spec.padding[axis], extent, spec.kernel[axis], spec.dilation[axis])
        for axis, at, extent in ((0, out_row, spec.in_height), (1, column, spec.in_width))
    ]
    (top, left), bounds = (tap[0] for tap in taps), [inside(s, k, d, e, always=False) for s, e, k, d in taps]
    average = spec.kind == "avg"
    acc = B.alloc_buffer((lanes,), "int32", scope="local")
    store(acc, 0, splat(B.int32(0 if average else -32768), lanes), lanes)
    with B.serial(*bounds[0]) as i, B.serial(*bounds[1]) as j:
        pixel = (image * spec.in_height + top + i * spec.dilation[0]) * spec.in_width + left + j * spec.dilation[1]
        tap = load(x, pixel * spec.channels + channel, lanes, "int32")
        store(acc, 0, load(acc, 0, lanes) + tap if average else B.max(load(acc, 0, lanes), tap), lanes)
    value = load(acc, 0, lanes)
    if average:
        count = B.Bind((bounds[0][1] - bounds[0][0]) * (bounds[1][1] - bounds[1][0]))
        value = _average(spec, value, count, lanes)
    low, high = (splat(B.int32(bound), lanes) for bound in (spec.output.qmin, spec.output.qmax))
    out = (row * spec.out_width + column) * spec.channels + channel
    store(y, out, B.min(B.max(value, low), high).astype(vector_type("int16", lanes)), lanes)


def _average(spec: Pool2dSpec, total: Expr, count: Expr, lanes: int) -> Expr:
    """Return the average as int32, zero point included."""
    if spec.rounding == "half_away":
        count = splat(B.max(count, B.int32(1)), lanes)
        half = count >> splat(B.int32(1), lanes)
        total = B.Bind(total)
        away = B.Select(total > splat(B.int32(0), lanes), total + half, total - half)
        return B.truncdiv(away, count)
    centered = total - splat(count * B.int32(spec.input_zero_point), lanes)
    pixels = B.int32(spec.kernel[0] * spec.kernel[1]) if spec.count_include_pad else B.max(count, B.int32(1))
    quotient = splat(B.Bind(B.float32(float(np.float32(spec.multiplier))) / pixels.astype("float32")), lanes)
    product = centered.astype(vector_type("float32", lanes)) * quotient
    out = spec.output
    return rounded(product, zero_point=out.zero_point, qmin=out.qmin, qmax=out.qmax, dtype="int32", lanes=lanes)
