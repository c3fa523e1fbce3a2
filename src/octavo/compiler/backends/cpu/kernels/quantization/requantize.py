"""Requantize: uint8 of one scale and zero point to uint8 of another. Oracle: `numerics.requantize_tensor`."""

from __future__ import annotations

from dataclasses import dataclass

from ......ir.composites.outputs import Output
from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.rounding import requantized_input
from ..language.vectors import Buffer, Expr, for_each_vector, load, prim_func, store


@dataclass(frozen=True, kw_only=True, slots=True)
class RequantizeSpec:
    """uint8 to uint8 of other parameters, over `size` values; `multiplier` is float32 in_scale / out_scale."""

    size: int
    multiplier: float
    input_zero_point: int
    output: Output
    threads: int = 1


def requantize(spec: RequantizeSpec, *, isa: str) -> Kernel:
    """Return the kernel of y = clamp(rint(float32(x - input_zero_point) * multiplier) + zero_point)."""
    width = lanes_of(isa)

    def emit(x: Buffer, y: Buffer) -> None:
        def one(start: Expr, lanes: int) -> None:
            value = requantized_input(load(x, start, lanes), spec.multiplier, spec.input_zero_point, spec.output, lanes)
            store(y, start, value, lanes)

        for_each_vector(spec.size, width, spec.threads, one)

    return Kernel(name="requantize", isa=isa, func=prim_func([("x", spec.size, "uint8"), ("y", spec.size, "uint8")], emit))
