"""Weights of float32 kernels in memory: as they are, or in 16 bits that hold the same numbers and are widened as they are read.

It rounds nothing: who asks for 16 bits has weights that they hold (`fits`).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......numerics.floats.half import HalfDtype, from_half, to_half
from ..language.isa import GENERIC
from ..language.vectors import Buffer, Expr, load, splat, vector_type
from ..quantization.half_cast import widened

WeightDtype = Literal["float32", "bfloat16", "float16"]


def fits(weight: npt.NDArray[np.float32], dtype: HalfDtype) -> bool:
    """Return whether 16 bits hold each weight, to the last bit; none that is not finite."""
    if not np.isfinite(weight).all():
        return False
    return from_half(to_half(weight, dtype), dtype).tobytes() == np.ascontiguousarray(weight, np.float32).tobytes()


def stored(packed: npt.NDArray[np.float32], dtype: WeightDtype) -> npt.NDArray[Any]:
    """Return packed weights as they lie in memory."""
    if dtype == "float32":
        return packed
    assert fits(packed, dtype), "the caller asks for what holds them"
    return to_half(packed, dtype)


def load_weights(buffer: Buffer, index: Expr, lanes: int, dtype: WeightDtype, isa: str) -> Expr:
    """Return neighbouring weights in float32."""
    if dtype == "float32":
        return load(buffer, index, lanes)
    bits = load(buffer, index, lanes)
    return _widened_in_steps(bits, lanes) if (dtype, isa) == ("float16", GENERIC) else widened(bits, lanes, dtype)


def _widened_in_steps(bits: Expr, lanes: int) -> Expr:
    """Return finite float16 numbers in float32 where no instruction widens them: exponents move by a factor, which is exact."""
    words = B.Bind(bits.astype(vector_type("uint32", lanes)))
    magnitude = (words & splat(B.uint32(0x7FFF), lanes)) << splat(B.uint32(13), lanes)
    value = B.reinterpret(vector_type("float32", lanes), magnitude) * splat(B.float32(2.0**112), lanes)
    sign = (words & splat(B.uint32(0x8000), lanes)) << splat(B.uint32(16), lanes)
    number = B.reinterpret(vector_type("uint32", lanes), value) | sign
    return B.reinterpret(vector_type("float32", lanes), number)
