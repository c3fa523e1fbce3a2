"""Concatenation of tensors of 8 or 16 bits with the output's parameters. Oracle: `numerics.concat`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ......ir.composites.outputs import Output
from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.rounding import clamped, requantized_input
from ..language.vectors import Buffer, Expr, chunked, for_each_vector, load, prim_func, store, worthwhile


@dataclass(frozen=True, kw_only=True, slots=True)
class ConcatSpec:
    """Concatenation of inputs [outer, inner_i] into [outer, sum(inner_i)], each requantized to the output's parameters.

    `multipliers` are float32 scale_i / out_scale; inputs of int16 have the output's scale and zero point.
    """

    outer: int
    inners: tuple[int, ...]
    multipliers: tuple[float, ...]
    zero_points: tuple[int, ...]
    output: Output
    dtype: Literal["uint8", "int16"] = "uint8"
    threads: int = 1


def concat(spec: ConcatSpec, *, isa: str) -> Kernel:
    """Return the kernel that writes [outer, inner_0 + inner_1 + ...]; an input that needs no requantizing is copied.

    Threads share the rows where there are enough of them; a concatenation of whole tensors (one row) shares each input.
    """
    width = sum(spec.inners)
    is_wide = spec.dtype == "int16"
    assert not is_wide or all(multiplier == 1.0 for multiplier in spec.multipliers), "inputs of int16 have the output's scale"
    lanes = lanes_of(isa) // (2 if is_wide else 1)
    threads = worthwhile(spec.threads, spec.outer * width, spec.outer)

    def emit(*buffers: Buffer) -> None:
        *inputs, y = buffers

        def row(index: Expr, inner_threads: int) -> None:
            at = 0
            for position, inner in enumerate(spec.inners):

                def one(start: Expr, width_now: int, position: int = position, inner: int = inner, at: int = at) -> None:
                    value = load(inputs[position], index * inner + start, width_now)
                    if is_wide:
                        value = clamped(value, spec.output, "int16", width_now)
                    else:
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

    arguments = [(f"x{i}", spec.outer * inner, spec.dtype) for i, inner in enumerate(spec.inners)]
    func = prim_func([*arguments, ("y", spec.outer * width, spec.dtype)], emit)
    return Kernel(name="concat.int16" if is_wide else "concat", isa=isa, func=func)
