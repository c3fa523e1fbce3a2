"""Casts between float32 and the 16 bits of bfloat16 or float16, element by element. Oracle: `numerics.floats.half`.

The 16 bits are uint16 in memory: TVM and NumPy know no arithmetic on bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvm.script.ir_builder import tirx as B

from .isa import lanes_of
from .spec import Kernel
from .vectors import Buffer, Expr, for_each_vector, load, prim_func, splat, store, vector_type


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfCastSpec:
    """`size` numbers from float32 to the bits of `dtype`, or with `widens` back."""

    size: int
    dtype: Literal["bfloat16", "float16"]
    widens: bool
    threads: int = 1


def half_cast(spec: HalfCastSpec, *, isa: str) -> Kernel:
    """Return the kernel; one text serves every ISA."""
    lanes = max(4, lanes_of(isa) // 4)
    convert = widened if spec.widens else narrowed

    def emit(x: Buffer, y: Buffer) -> None:
        def vector(start: Expr, count: int) -> None:
            store(y, start, convert(load(x, start, count), count, spec.dtype), count)

        for_each_vector(spec.size, lanes, spec.threads, vector)

    dtypes = ("uint16", "float32") if spec.widens else ("float32", "uint16")
    func = prim_func([("x", spec.size, dtypes[0]), ("y", spec.size, dtypes[1])], emit)
    name = f"{spec.dtype}.to_float32" if spec.widens else f"float32.to_{spec.dtype}"
    return Kernel(name=name, isa=isa, func=func)


def widened(bits: Expr, lanes: int, dtype: str) -> Expr:
    """Return the float32 numbers of 16-bit ones."""
    floats = vector_type("float32", lanes)
    if dtype == "float16":
        return B.reinterpret(vector_type("float16", lanes), bits).astype(floats)
    return B.reinterpret(floats, bits.astype(vector_type("uint32", lanes)) << splat(B.uint32(16), lanes))


def narrowed(value: Expr, lanes: int, dtype: str) -> Expr:
    """Return the bits of float32 numbers rounded half to even; of bfloat16, subnormal numbers become zero."""
    words = vector_type("uint16", lanes)
    if dtype == "float16":
        return B.reinterpret(words, value.astype(vector_type("float16", lanes)))

    def constant(number: int) -> Expr:
        return splat(B.uint32(number), lanes)

    bits = B.Bind(B.reinterpret(vector_type("uint32", lanes), value))
    high = B.Bind(bits >> constant(16))
    rounded = (bits + (constant(0x7FFF) + (high & constant(1)))) >> constant(16)
    magnitude = B.Bind(bits & constant(0x7FFFFFFF))
    tiny = B.Select(magnitude < constant(0x00800000), high & constant(0x8000), rounded)
    return B.Select(magnitude > constant(0x7F800000), high | constant(0x40), tiny).astype(words)
