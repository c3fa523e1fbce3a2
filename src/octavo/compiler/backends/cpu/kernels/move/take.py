"""Rows of a uint8 or int16 tensor by indices that are known at run time only. Oracle: `numpy.take` with clipped indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvm.script.ir_builder import tirx as B

from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.vectors import Buffer, chunked, for_each_vector, load, prim_func, split, store, worthwhile


@dataclass(frozen=True, kw_only=True, slots=True)
class TakeSpec:
    """`dtype` [outer, extent, inner] by `count` indices to [outer, count, inner]; indices are clipped to [0; extent - 1]."""

    outer: int
    extent: int
    inner: int
    count: int
    index_dtype: Literal["int32", "int64"] = "int32"
    dtype: Literal["uint8", "int16"] = "uint8"
    threads: int = 1


def take(spec: TakeSpec, *, isa: str) -> Kernel:
    """Return the kernel of y[i, j, k] = x[i, indices[j], k]."""
    rows = spec.outer * spec.count
    size = rows * spec.inner
    width = lanes_of(isa)

    def emit(x: Buffer, indices: Buffer, y: Buffer) -> None:
        with chunked(rows, worthwhile(spec.threads, size, rows)) as row:
            outer, place = split(row, spec.count)
            wanted = indices[place].astype("int64")
            index = B.Bind(B.min(B.max(wanted, B.int64(0)), B.int64(0) + (spec.extent - 1)).astype("int32"))
            source = (outer * spec.extent + index) * spec.inner
            target = row * spec.inner
            for_each_vector(spec.inner, width, 1, lambda at, lanes: store(y, target + at, load(x, source + at, lanes), lanes))

    arguments = [("x", spec.outer * spec.extent * spec.inner, spec.dtype), ("indices", spec.count, spec.index_dtype)]
    return Kernel(name="take", isa=isa, func=prim_func([*arguments, ("y", size, spec.dtype)], emit))
