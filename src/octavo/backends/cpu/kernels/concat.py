"""Concatenation of uint8 tensors, each requantized to the output's parameters. Oracle: `numerics.concat`."""

from __future__ import annotations

from .isa import lanes_of
from .rounding import requantized_input
from .spec import ConcatSpec, Kernel
from .vectors import Buffer, Expr, chunked, for_each_vector, load, prim_func, store, worthwhile


def concat(spec: ConcatSpec, *, isa: str) -> Kernel:
    """Return the kernel that writes [outer, inner_0 + inner_1 + ...]; an input that needs no requantizing is copied.

    Threads share the rows where there are enough of them; a concatenation of whole tensors (one row) shares each input.
    """
    width = sum(spec.inners)
    lanes = lanes_of(isa)
    threads = worthwhile(spec.threads, spec.outer * width, spec.outer)

    def emit(*buffers: Buffer) -> None:
        *inputs, y = buffers

        def row(index: Expr, inner_threads: int) -> None:
            at = 0
            for position, inner in enumerate(spec.inners):

                def one(start: Expr, width_now: int, position: int = position, inner: int = inner, at: int = at) -> None:
                    value = load(inputs[position], index * inner + start, width_now)
                    multiplier, zero_point = spec.multipliers[position], spec.zero_points[position]
                    value = requantized_input(value, multiplier, zero_point, spec.output, width_now)
                    store(y, index * width + at + start, value, width_now)

                for_each_vector(inner, lanes, inner_threads, one)
                at += inner

        if spec.outer == 1:
            row(0, spec.threads)
            return
        with chunked(spec.outer, threads) as index:
            row(index, 1)

    arguments = [(f"x{i}", spec.outer * inner, "uint8") for i, inner in enumerate(spec.inners)]
    func = prim_func([*arguments, ("y", spec.outer * width, "uint8")], emit)
    return Kernel(name="concat", isa=isa, func=func)
