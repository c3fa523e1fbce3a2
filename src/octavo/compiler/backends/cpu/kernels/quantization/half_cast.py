"""Casts between float32 and the 16 bits of bfloat16 or float16, element by element. Oracle: `numerics.floats.half`.

The 16 bits are uint16 in memory: TVM and NumPy know no arithmetic on bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvm.script.ir_builder import tirx as B

from ..language.isa import GENERIC, lanes_of
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, for_each_vector, load, prim_func, splat, store, vector_type


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

    def emit(x: Buffer, y: Buffer) -> None:
        def vector(start: Expr, count: int) -> None:
            value = load(x, start, count)
            result = widened(value, count, spec.dtype) if spec.widens else narrowed(value, count, spec.dtype, isa)
            store(y, start, result, count)

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


def narrowed(value: Expr, lanes: int, dtype: str, isa: str) -> Expr:
    """Return the bits of float32 numbers rounded half to even; of bfloat16, subnormal numbers become zero."""
    words = vector_type("uint16", lanes)
    if dtype == "bfloat16":
        return narrowed_bfloat16(value, lanes)
    if isa == GENERIC:
        return _narrowed_in_steps(value, lanes).astype(words)
    return B.reinterpret(words, value.astype(vector_type("float16", lanes)))


def narrowed_bfloat16(value: Expr, lanes: int) -> Expr:
    """Return the bits of bfloat16 numbers, rounded half to even; subnormal numbers become zero."""

    def constant(number: int) -> Expr:
        return splat(B.uint32(number), lanes)

    bits = B.Bind(B.reinterpret(vector_type("uint32", lanes), value))
    high = B.Bind(bits >> constant(16))
    rounded = (bits + (constant(0x7FFF) + (high & constant(1)))) >> constant(16)
    magnitude = B.Bind(bits & constant(0x7FFFFFFF))
    tiny = B.Select(magnitude < constant(0x00800000), high & constant(0x8000), rounded)
    return B.Select(magnitude > constant(0x7F800000), high | constant(0x40), tiny).astype(vector_type("uint16", lanes))


def _narrowed_in_steps(value: Expr, lanes: int) -> Expr:
    """Return the bits of float16 numbers, uint32, where no instruction narrows them: LLVM would call a function for each.

    That function is TVM's, which on RISC-V returns its result in another register than LLVM reads.
    """

    def constant(number: int) -> Expr:
        return splat(B.uint32(number), lanes)

    bits = B.Bind(B.reinterpret(vector_type("uint32", lanes), value))
    magnitude = B.Bind(bits & constant(0x7FFFFFFF))
    # 13 bits fewer, half to even, and an exponent that counts from -14 instead of -126.
    rounded = (magnitude + (constant(0x0FFF) + ((magnitude >> constant(13)) & constant(1)))) >> constant(13)
    normal = rounded - constant(112 << 10)
    # To the sum with 0.5 a unit in the last place is what it is to subnormal numbers, 2**-24.
    subnormal = B.reinterpret(vector_type("float32", lanes), magnitude) + splat(B.float32(0.5), lanes)
    tiny = B.reinterpret(vector_type("uint32", lanes), subnormal) - constant(0x3F000000)
    number = B.Select(magnitude < constant(0x38800000), tiny, normal)
    finite = B.Select(magnitude < constant(0x477FF000), number, constant(0x7C00))  # 65520, half a unit above the largest
    quiet = constant(0x7E00) | ((magnitude >> constant(13)) & constant(0x1FF))
    return B.Select(magnitude > constant(0x7F800000), quiet, finite) | ((bits >> constant(16)) & constant(0x8000))
