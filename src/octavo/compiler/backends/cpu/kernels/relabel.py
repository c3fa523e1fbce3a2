"""Relabel: int8 q to uint8 q + 128, uint16 q to int16 q - 32768, or back: the same real number under a zero point moved alike.

Oracle: `numerics.relabel`.
"""

from __future__ import annotations

import tvm
from tvm.script.ir_builder import tirx as B

from .isa import lanes_of
from .spec import Kernel, RelabelSpec
from .vectors import Buffer, Expr, for_each_vector, load, prim_func, splat, store, vector_type


def relabel(spec: RelabelSpec, *, isa: str) -> Kernel:
    """Return the kernel that flips the top bit of each value."""
    bits = 16 if spec.in_dtype.endswith("16") else 8
    width, unsigned = lanes_of(isa) * 8 // bits, f"uint{bits}"

    def emit(x: Buffer, y: Buffer) -> None:
        def one(start: Expr, lanes: int) -> None:
            value = B.reinterpret(vector_type(unsigned, lanes), load(x, start, lanes))
            value = B.bitwise_xor(value, splat(tvm.tirx.const(1 << (bits - 1), unsigned), lanes))
            store(y, start, B.reinterpret(vector_type(spec.out_dtype, lanes), value), lanes)

        for_each_vector(spec.size, width, spec.threads, one)

    return Kernel(
        name="relabel", isa=isa, func=prim_func([("x", spec.size, spec.in_dtype), ("y", spec.size, spec.out_dtype)], emit)
    )
