"""A product and a sum by rows: uint8 times a multiplier plus a bias, both of the element's row. Oracle: `numerics.requantize`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ......ir.composites.outputs import Output
from ......numerics import AffineRows
from ..language.broadcast import Axis, broadcast_shape, for_each_pair
from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.rounding import requantized
from ..language.vectors import Buffer, Expr, load, prim_func, splat, store


@dataclass(frozen=True, kw_only=True, slots=True)
class AffineRowsSpec:
    """uint8 of `a_shape`, and a row for each element of `b_shape`; the shapes broadcast."""

    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    threads: int = 1


def affine_rows(spec: AffineRowsSpec, *, lines: AffineRows, rows: npt.NDArray[np.integer], isa: str) -> Kernel:
    """Return the kernel of y = clamp(rint(fma(a, multiplier[row], bias[row])) + zero_point); `rows` is of `b_shape`."""
    a_size, b_size = math.prod(spec.a_shape), math.prod(spec.b_shape)
    size = math.prod(broadcast_shape(spec.a_shape, spec.b_shape))
    output = Output(zero_point=lines.zero_point, qmin=lines.qmin, qmax=lines.qmax)

    def emit(a: Buffer, multipliers: Buffer, biases: Buffer, y: Buffer) -> None:
        def one(a_at: Expr, b_at: Expr, y_at: Expr, lanes: int, inner: Axis) -> None:
            value = load(a, a_at, lanes, "int32") if inner.has_a else splat(a[a_at].astype("int32"), lanes)
            multiplier, bias = (
                load(buffer, b_at, lanes) if inner.has_b else splat(buffer[b_at], lanes) for buffer in (multipliers, biases)
            )
            store(y, y_at, requantized(value, multiplier, output, lanes, bias=bias), lanes)

        for_each_pair(spec.a_shape, spec.b_shape, lanes_of(isa), spec.threads, one)

    arguments = [("a", a_size, "uint8"), ("multipliers", b_size, "float32"), ("biases", b_size, "float32"), ("y", size, "uint8")]
    flat = rows.reshape(-1)
    constants = (np.ascontiguousarray(lines.multiplier[flat]), np.ascontiguousarray(lines.bias[flat]))
    return Kernel(name="affine_rows", isa=isa, func=prim_func(arguments, emit), constants=constants)
