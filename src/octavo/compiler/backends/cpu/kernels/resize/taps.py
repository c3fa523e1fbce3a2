"""Tables of bilinear taps along axes of open size, computed when the model runs: what `numerics.linear_taps` and
`numerics.float_taps` give, bit for bit. The kernels that resize read them as they read constants.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm.script.ir_builder import tirx as B

from ......ir.composites.reduction import OpenTaps
from ......numerics import FRACTION_BITS
from ......runtime.shapes import largest
from ......runtime.size import is_open
from ..language.kernel import Kernel
from ..language.rounding import integer_of, unfused
from ..language.vectors import Buffer, Expr, float_of, prim_func, tirx


def linear_taps(taps: OpenTaps, *, isa: str) -> Kernel:
    """Return the kernel of a table int32 [out_extent, 3]: the pixels before and behind each place, and the fraction between."""

    def emit(table: Buffer) -> None:
        with B.serial(0, taps.out_extent) as place:
            position = _clipped(_position_by_scale(taps, _float(place)), taps)
            first, second = _pixels(position, taps)
            fraction = integer_of((position - _float(first)) * B.float32(1 << FRACTION_BITS), 1)
            for offset, value in enumerate((first, second, fraction)):
                B.buffer_store(table, value, [place * 3 + offset])

    return _kernel("resize_taps", 3, "int32", taps, emit, isa)


def float_tap_places(taps: OpenTaps, *, isa: str) -> Kernel:
    """Return the kernel of a table int32 [out_extent, 2]: the pixels before and behind each place."""

    def emit(table: Buffer) -> None:
        with B.serial(0, taps.out_extent) as place:
            for offset, value in enumerate(_pixels(_clipped(_position_by_factor(taps, _float(place)), taps), taps)):
                B.buffer_store(table, value, [place * 2 + offset])

    return _kernel("resize_taps.places", 2, "int32", taps, emit, isa)


def float_tap_weights(taps: OpenTaps, *, isa: str) -> Kernel:
    """Return the kernel of a table float32 [out_extent, 2]: the weights of the pixels before and behind each place."""

    def emit(table: Buffer) -> None:
        with B.serial(0, taps.out_extent) as place:
            position = _clipped(_position_by_factor(taps, _float(place)), taps)
            first, second = _pixels(position, taps)
            for offset, other in enumerate((second, first)):
                distance = tirx.abs(position - _float(other))
                B.buffer_store(table, B.Select(first == second, B.float32(0.5), distance), [place * 2 + offset])

    return _kernel("resize_taps.weights", 2, "float32", taps, emit, isa)


def _kernel(name: str, columns: int, dtype: str, taps: OpenTaps, emit: Callable[[Buffer], None], isa: str) -> Kernel:
    return Kernel(name=name, isa=isa, func=prim_func([("table", taps.out_extent * columns, dtype)], emit), constants=())


def _float(value: Expr) -> Expr:
    """Return an integer as float32, rounded down, which LLVM leaves out: TVM's analyzer fails at a bare product of these."""
    return tirx.floor(value.astype("float32"))


def _ratio(dividend: int, divisor: int) -> Expr:
    """Return the float32 quotient of two sizes; of numbers it is formed here, as TVM would round it twice."""
    if not is_open(dividend) and not is_open(divisor):
        return B.float32(float(np.float32(dividend) / np.float32(divisor)))
    return B.Bind(float_of(dividend) / float_of(divisor))


def _position_by_scale(taps: OpenTaps, at: Expr) -> Expr:
    """Return `numerics.source_positions` of a place."""
    half = B.float32(0.5)
    if taps.mode == "align_corners":
        return unfused(at * _ratio(taps.extent - 1, largest((taps.out_extent - 1, 1))), 1)
    scale = _ratio(taps.extent, taps.out_extent)
    if taps.mode == "asymmetric":
        return unfused(at * scale, 1)
    shifted = unfused((at + half) * scale, 1) - half
    return shifted if taps.mode == "half_pixel" else _unless_one(taps, shifted)


def _position_by_factor(taps: OpenTaps, at: Expr) -> Expr:
    """Return the position of a place as `numerics.float_taps` forms it."""
    half, factor = B.float32(0.5), _ratio(taps.out_extent, taps.extent)
    if taps.mode == "align_corners":
        position = unfused(at * float_of(taps.extent - 1), 1) / float_of(largest((taps.out_extent - 1, 1)))
    elif taps.mode == "asymmetric":
        position = at / factor
    else:
        position = (at + half) / factor - half
    position = position if taps.mode != "pytorch_half_pixel" else _unless_one(taps, position)
    return B.Select(factor == B.float32(1), at, position)


def _unless_one(taps: OpenTaps, position: Expr) -> Expr:
    """Return a position, and that of the first pixel where the result has one alone."""
    return B.Select(B.int32(0) + taps.out_extent > 1, position, B.float32(0))


def _clipped(position: Expr, taps: OpenTaps) -> Expr:
    return B.Bind(tirx.min(tirx.max(position, B.float32(0)), float_of(taps.extent - 1)))


def _pixels(position: Expr, taps: OpenTaps) -> tuple[Expr, Expr]:
    last = B.int32(0) + (taps.extent - 1)
    first = B.Bind(tirx.min(position.astype("int32"), last))
    return first, B.Bind(tirx.min(first + 1, last))
