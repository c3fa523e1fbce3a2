"""Rows of float32 tensors side by side, each column with a factor and an addend where it has them, clamped.

Of one tensor it is a batch normalization. Oracle: `numerics.fused_multiply_add` on what `numpy.concatenate` gives, `numpy.clip`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......runtime.size import is_open
from ..language.kernel import Kernel
from ..language.vectors import (
    Buffer,
    Expr,
    chunked,
    clamped_to,
    for_each_vector,
    intrinsic,
    load,
    prim_func,
    store,
    vector_type,
    worthwhile,
)

_LANES = 16

_SHORT = 128
"""Elements of a row whose vectors are written out: kernels of open sizes that share their code don't know how many there are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatConcatSpec:
    """[outer, inner_0], [outer, inner_1] ... to [outer, inner_0 + inner_1 + ...], float32 clamped to [low; high].

    With `room`, rows of the result are so far apart, and where `in_place` is 1, the first input is the result's own memory.
    """

    outer: int
    inners: tuple[int, ...]
    low: float = -math.inf
    high: float = math.inf
    room: int = 0
    in_place: int = 0
    dtype: str = "float32"
    threads: int = 1

    @property
    def pitch(self) -> int:
        """Elements from one row of the result to the next."""
        return self.room if is_open(self.room) else self.room or sum(self.inners)


def float_concat(
    spec: FloatConcatSpec, *, line: tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None, isa: str
) -> Kernel:
    """Return the kernel of y = clamp(x * factor + addend), the product and the sum rounded once.

    `line` are the factors and the addends of all columns; None copies.
    """
    width = sum(spec.inners)
    constants = () if line is None else line
    assert spec.dtype == "float32" or (line is None and math.isinf(spec.low) and math.isinf(spec.high)), "a copy"
    assert all(values.shape == (width,) for values in constants), "a factor and an addend for each column"

    def emit(*buffers: Buffer) -> None:
        inputs, lines, y = buffers[: len(spec.inners)], buffers[len(spec.inners) : -1], buffers[-1]

        def row(index: Expr, threads: int) -> None:
            at = 0
            for source, inner in zip(inputs, spec.inners, strict=True):

                def piece(start: Expr, lanes: int, source: Buffer = source, inner: int = inner, at: int = at) -> None:
                    value = load(source, index * inner + start, lanes)
                    if lines:
                        factor, addend = (load(values, at + start, lanes) for values in lines)
                        value = intrinsic("llvm.fma", vector_type("float32", lanes), value, factor, addend)
                    store(y, index * spec.pitch + at + start, clamped_to(value, spec.low, spec.high, lanes), lanes)

                if source is inputs[0] and is_open(spec.room):
                    with B.If(B.int32(0) + spec.in_place == 0), B.Then():
                        for_each_vector(inner, _LANES, threads, piece)
                elif is_open(spec.outer) and not is_open(inner) and inner % _LANES == 0 and inner <= _SHORT:
                    for start in range(0, inner, _LANES):
                        piece(B.int32(start), _LANES)
                else:
                    for_each_vector(inner, _LANES, threads, piece)
                at += inner

        if spec.outer == 1:
            row(0, spec.threads)
            return
        with chunked(spec.outer, worthwhile(spec.threads, spec.outer * width, spec.outer)) as index:
            row(index, 1)

    arguments = [(f"x{i}", spec.outer * inner, spec.dtype) for i, inner in enumerate(spec.inners)]
    arguments += [(name, width, "float32") for name, _ in zip(("factors", "addends"), constants, strict=False)]
    func = prim_func([*arguments, ("y", spec.outer * spec.pitch, spec.dtype)], emit)
    return Kernel(name="float.concat" if len(spec.inners) > 1 else "float.norm", isa=isa, func=func, constants=constants)


def dense_rows(*, outer: int, inner: int, room: int, dtype: str, threads: int, isa: str) -> Kernel:
    """Return the kernel of rows [outer, inner] that lie `room` apart to the same side by side."""

    def emit(x: Buffer, y: Buffer) -> None:
        def row(index: Expr, threads: int) -> None:
            def piece(start: Expr, lanes: int) -> None:
                store(y, index * inner + start, load(x, index * room + start, lanes), lanes)

            for_each_vector(inner, _LANES, threads, piece)

        with chunked(outer, worthwhile(threads, outer * inner, outer)) as index:
            row(index, 1)

    func = prim_func([("x", outer * room, dtype), ("y", outer * inner, dtype)], emit)
    return Kernel(name="float.dense_rows", isa=isa, func=func)
