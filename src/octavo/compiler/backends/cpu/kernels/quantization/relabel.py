"""Relabel: int8 q to uint8 q + 128, uint16 q to int16 q - 32768, or back: the same real number under a zero point moved alike.

Oracle: `numerics.relabel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import tvm
from tvm.script.ir_builder import tirx as B

from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, for_each_vector, load, prim_func, splat, store, vector_type


@dataclass(frozen=True, kw_only=True, slots=True)
class RelabelSpec:
    """int8 to uint8 or uint16 to int16, or back, over `size` values: the same real number under a zero point moved alike."""

    size: int
    in_dtype: Literal["uint8", "int8", "uint16", "int16"]
    threads: int = 1

    @property
    def out_dtype(self) -> str:
        """The dtype of as many bits with the other sign."""
        return {"uint8": "int8", "int8": "uint8", "uint16": "int16", "int16": "uint16"}[self.in_dtype]


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
