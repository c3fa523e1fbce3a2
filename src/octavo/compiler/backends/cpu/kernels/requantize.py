"""Requantize: uint8 of one scale and zero point to uint8 of another. Oracle: `numerics.requantize_tensor`."""

from __future__ import annotations

from .isa import lanes_of
from .rounding import requantized_input
from .spec import Kernel, RequantizeSpec
from .vectors import Buffer, Expr, for_each_vector, load, prim_func, store


def requantize(spec: RequantizeSpec, *, isa: str) -> Kernel:
    """Return the kernel of y = clamp(rint(float32(x - input_zero_point) * multiplier) + zero_point)."""
    width = lanes_of(isa)

    def emit(x: Buffer, y: Buffer) -> None:
        def one(start: Expr, lanes: int) -> None:
            value = requantized_input(load(x, start, lanes), spec.multiplier, spec.input_zero_point, spec.output, lanes)
            store(y, start, value, lanes)

        for_each_vector(spec.size, width, spec.threads, one)

    return Kernel(name="requantize", isa=isa, func=prim_func([("x", spec.size, "uint8"), ("y", spec.size, "uint8")], emit))
