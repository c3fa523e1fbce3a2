"""Bilinear resizing of int16 images in fixed point. Oracle: `numerics.resize_bilinear`."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.script.ir_builder import tirx as B

from ....numerics.quantized.resize import INT16_FRACTION_BITS
from .isa import lanes_of
from .resize import Corners, TappedImage, mixing_kernel
from .spec import Kernel
from .vectors import Expr, splat, vector_type

_OPERATIONS = 16
"""Elementary operations that a value costs, for the choice of threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Int16ResizeSpec(TappedImage):
    """int16 to int16, of the same scale and zero point."""


def int16_resize_bilinear(spec: Int16ResizeSpec, *, isa: str) -> Kernel:
    """Return the kernel that mixes each value's four neighbours, across in 32 bits and down in 64."""

    def mixed(corners: Corners, across: Expr, down: Expr, lanes: int) -> Expr:
        def between(left: Expr, right: Expr) -> Expr:
            left = B.Bind(left)
            sum_ = (left << splat(B.int32(INT16_FRACTION_BITS), lanes)) + (right - left) * splat(across, lanes)
            return B.Bind(sum_.astype(vector_type("int64", lanes)))

        top, bottom = (between(left, right) for left, right in corners)
        weight = splat(down.astype("int64"), lanes)
        return _shifted(B.Bind((top << splat(B.int64(INT16_FRACTION_BITS), lanes)) + (bottom - top) * weight), lanes)

    lanes_full = lanes_of(isa) // 4
    return mixing_kernel("resize_bilinear.int16", spec, "int16", mixed, isa=isa, lanes_full=lanes_full, operations=_OPERATIONS)


def _shifted(acc: Expr, lanes: int) -> Expr:
    """Return acc / 2**20, half away from 0, as int16; a weighted mean of int16 values is one."""

    def number(value: int) -> Expr:
        return splat(B.int64(value), lanes)

    shift = 2 * INT16_FRACTION_BITS
    rounded = (acc + number(1 << (shift - 1)) + (acc >> number(63))) >> number(shift)
    return rounded.astype(vector_type("int16", lanes))
