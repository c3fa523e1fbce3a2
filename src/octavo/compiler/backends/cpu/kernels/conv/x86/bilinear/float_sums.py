"""Sums of products by the core's adders of floats, which leave its multipliers alone: exact, for cores that have both.

vpmaddwd takes two of the four vector pipes of a Zen core, and vpaddd any of them: sums take turns with products. vaddps takes
two, of which one multiplies no words. An int32 in [0; 2**24], read as a float32 without being converted, is that many times
2**-149: IEEE 754 spaces its numbers evenly up to there, those below 2**23 being subnormal. So floats' sums of such integers are
the integers' sums, as long as these stay there, too: no sum is rounded.

`shifted_product` sees to it that operands are not negative and that sums stay small.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from tvm.script.ir_builder import tirx as T

from ....language.vectors import Expr

_DEFAULT_MODE = 0x1F80
"""MXCSR with no exception unmasked, rounding half to even, and no subnormal number taken or left as zero."""


def add_as_floats(a: Expr, b: Expr, lanes: int) -> Expr:
    """Return a + b of int32 in [0; 2**24] whose sum lies there, too: vaddps of their bits, within `subnormals`."""
    dtype = f"float32x{lanes}"
    return T.reinterpret(f"int32x{lanes}", T.reinterpret(dtype, a) + T.reinterpret(dtype, b))


@contextlib.contextmanager
def subnormals() -> Generator[None]:
    """Emit what runs within with subnormal numbers as IEEE 754 has them, whatever the thread's mode, which it gets back."""
    mode, ours = (T.alloc_buffer((1,), "int32", scope="local") for _ in range(2))

    def call(name: str, buffer: Expr) -> None:
        intrinsic = T.llvm_lookup_intrinsic_id(f"llvm.x86.sse.{name}")
        T.evaluate(T.call_llvm_intrin(intrinsic, T.address_of(buffer[0]), dtype="void"))

    call("stmxcsr", mode)
    T.buffer_store(ours, T.int32(_DEFAULT_MODE), [0])
    call("ldmxcsr", ours)
    yield
    call("ldmxcsr", mode)
