"""Max and average pooling of 16-bit floats, NHWC. Oracle: `numerics.floats.half`.

Values are float32 in registers. One text for every ISA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvm.script.ir_builder import tirx as B

from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, for_each_vector, interior, load, prim_func, splat, split, store, worthwhile
from ..quantization.half_cast import narrowed, widened

_TAP_OPERATIONS = 4
"""Elementary operations of each tap, for the choice of threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfPool2dSpec:
    """Pooling of [batch, in_height, in_width, channels] to [batch, out_height, out_width, channels].

    `padding` is (top, left); what lies behind the image at the other end is padding, too.
    """

    dtype: Literal["bfloat16", "float16"]
    kind: Literal["max", "avg"]
    batch: int
    in_height: int
    in_width: int
    out_height: int
    out_width: int
    channels: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int] = (1, 1)
    count_include_pad: bool = False
    threads: int = 1


def half_pool2d(spec: HalfPool2dSpec, *, isa: str) -> Kernel:
    """Return the pooling kernel; threads share the rows of the output."""
    lanes = max(4, lanes_of(isa) // 4)
    rows = spec.batch * spec.out_height
    operations = rows * spec.out_width * spec.channels * spec.kernel[0] * spec.kernel[1] * _TAP_OPERATIONS

    def emit(x: Buffer, y: Buffer) -> None:
        with chunked(rows, worthwhile(spec.threads, operations, rows)) as row, B.serial(0, spec.out_width) as column:
            for_each_vector(
                spec.channels, lanes, 1, lambda channel, width: _emit_pixel(spec, isa, (x, y), row, column, channel, width)
            )

    arguments = [
        ("x", spec.batch * spec.in_height * spec.in_width * spec.channels, "uint16"),
        ("y", rows * spec.out_width * spec.channels, "uint16"),
    ]
    return Kernel(name=f"{spec.dtype}.{spec.kind}_pool2d", isa=isa, func=prim_func(arguments, emit))


def _emit_pixel(
    spec: HalfPool2dSpec, isa: str, buffers: tuple[Buffer, Buffer], row: Expr, column: Expr, channel: Expr, lanes: int
) -> None:
    """Emit `lanes` channels of one output pixel."""
    x, y = buffers
    image, out_row = split(row, spec.out_height)
    starts = out_row * spec.strides[0] - spec.padding[0], column * spec.strides[1] - spec.padding[1]
    vertical, horizontal = _taps(spec, 0, starts[0]), _taps(spec, 1, starts[1])
    acc = B.alloc_buffer((lanes,), "float32", scope="local")
    is_max = spec.kind == "max"
    store(acc, 0, splat(B.float32(float("-inf")) if is_max else B.float32(0), lanes), lanes)
    with B.serial(*vertical) as i, B.serial(*horizontal) as j:
        in_row = image * spec.in_height + starts[0] + i * spec.dilation[0]
        pixel = in_row * spec.in_width + starts[1] + j * spec.dilation[1]
        tap = widened(load(x, pixel * spec.channels + channel, lanes), lanes, spec.dtype)
        store(acc, 0, B.max(load(acc, 0, lanes), tap) if is_max else load(acc, 0, lanes) + tap, lanes)
    value = load(acc, 0, lanes)
    if not is_max:
        count = (vertical[1] - vertical[0]) * (horizontal[1] - horizontal[0])
        if spec.count_include_pad:
            count = spec.kernel[0] * spec.kernel[1]
        divisor = B.float32(count) if isinstance(count, int) else B.cast(count, "float32")
        value = value / splat(divisor, lanes)
    result = narrowed(B.Bind(value), lanes, spec.dtype, isa)
    store(y, (row * spec.out_width + column) * spec.channels + channel, result, lanes)


def _taps(spec: HalfPool2dSpec, axis: int, start: Expr) -> tuple[Expr, Expr]:
    """Return the taps of one axis that lie in the image: [first; last)."""
    taps, dilation, before = spec.kernel[axis], spec.dilation[axis], spec.padding[axis]
    extent, out = ((spec.in_height, spec.out_height), (spec.in_width, spec.out_width))[axis]
    always = before == 0 and (out - 1) * spec.strides[axis] + (taps - 1) * dilation < extent
    return interior(start, taps, dilation, extent, always=always)
