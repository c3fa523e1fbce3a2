"""Concatenation of 16-bit floats, whose bits it copies. Oracle: `numpy.concatenate`."""

from __future__ import annotations

from dataclasses import dataclass

from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, for_each_vector, load, prim_func, store, worthwhile


@dataclass(frozen=True, kw_only=True, slots=True)
class HalfConcatSpec:
    """[outer, inner_0], [outer, inner_1] ... to [outer, inner_0 + inner_1 + ...], any 16 bits."""

    outer: int
    inners: tuple[int, ...]
    threads: int = 1


def half_concat(spec: HalfConcatSpec, *, isa: str) -> Kernel:
    """Return the kernel that copies rows side by side."""
    width, lanes = sum(spec.inners), max(8, lanes_of(isa) // 2)

    def emit(*buffers: Buffer) -> None:
        *inputs, y = buffers
        with chunked(spec.outer, worthwhile(spec.threads, spec.outer * width, spec.outer)) as index:
            at = 0
            for source, inner in zip(inputs, spec.inners, strict=True):

                def copy(start: Expr, count: int, source: Buffer = source, inner: int = inner, at: int = at) -> None:
                    store(y, index * width + at + start, load(source, index * inner + start, count), count)

                for_each_vector(inner, lanes, 1, copy)
                at += inner

    arguments = [(f"x{i}", spec.outer * inner, "uint16") for i, inner in enumerate(spec.inners)]
    return Kernel(name="half.concat", isa=isa, func=prim_func([*arguments, ("y", spec.outer * width, "uint16")], emit))
