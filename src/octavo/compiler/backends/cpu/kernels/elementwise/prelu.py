"""Parametric relu of int16 with constant slopes. Oracle: `numerics.quantized.rescale.prelu_int16`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import Output
from ......numerics.quantized.rescale import prelu_int16_multipliers
from ..language.broadcast import Axis, broadcast_shape, for_each_pair
from ..language.fixed_point import clamped_integer, fixed_point_scaled
from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, load, prim_func, splat, store


@dataclass(frozen=True, kw_only=True, slots=True)
class PreluSpec:
    """Symmetric int16 x; the slopes' shape broadcasts to its."""

    shape: tuple[int, ...]
    x_scale: float
    slope_scale: float
    out_scale: float
    output: Output
    threads: int = 1


def prelu(spec: PreluSpec, *, slopes: npt.NDArray[np.integer], isa: str) -> Kernel:
    """Return the kernel; `slopes` are 8-bit integers less their zero point."""
    assert broadcast_shape(spec.shape, slopes.shape) == spec.shape, "slopes do not widen x"
    above, below = prelu_int16_multipliers(spec.x_scale, spec.slope_scale, spec.out_scale)

    def emit(x: Buffer, steepness: Buffer, y: Buffer) -> None:
        def one(x_at: Expr, slope_at: Expr, y_at: Expr, lanes: int, inner: Axis) -> None:
            value = B.Bind(load(x, x_at, lanes, "int64"))
            slope = (
                load(steepness, slope_at, lanes, "int64") if inner.has_b else splat(steepness[slope_at].astype("int64"), lanes)
            )
            zero = splat(B.int64(0), lanes)
            positive, negative = B.max(value, zero), B.min(value, zero)
            # A factor leaves 0 as it is, so that one of the two is 0.
            total = fixed_point_scaled(positive, above, lanes) + fixed_point_scaled(negative * slope, below, lanes)
            store(y, y_at, clamped_integer(total, spec.output, lanes), lanes)

        for_each_pair(spec.shape, slopes.shape, lanes_of(isa) // 4, spec.threads, one)

    size = math.prod(spec.shape)
    arguments = [("x", size, "int16"), ("slopes", slopes.size, "int16"), ("y", size, "int16")]
    return Kernel(name="prelu.int16", isa=isa, func=prim_func(arguments, emit), constants=(slopes.astype(np.int16).reshape(-1),))
