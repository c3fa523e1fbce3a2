"""Relabel: int8 q to uint8 q + 128, or back, which is the same real number under a zero point moved alike.

Oracle: `numerics.relabel`.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as B

from .isa import lanes_of
from .spec import Kernel, RelabelSpec
from .vectors import Buffer, Expr, for_each_vector, load, prim_func, splat, store, vector_type


def relabel(spec: RelabelSpec, *, isa: str) -> Kernel:
    """Return the kernel that flips the top bit of each byte."""
    out_dtype = "int8" if spec.in_dtype == "uint8" else "uint8"
    width = lanes_of(isa)

    def emit(x: Buffer, y: Buffer) -> None:
        def one(start: Expr, lanes: int) -> None:
            value = B.reinterpret(vector_type("uint8", lanes), load(x, start, lanes))
            value = B.bitwise_xor(value, splat(B.uint8(0x80), lanes))
            store(y, start, B.reinterpret(vector_type(out_dtype, lanes), value), lanes)

        for_each_vector(spec.size, width, spec.threads, one)

    return Kernel(name="relabel", isa=isa, func=prim_func([("x", spec.size, spec.in_dtype), ("y", spec.size, out_dtype)], emit))
