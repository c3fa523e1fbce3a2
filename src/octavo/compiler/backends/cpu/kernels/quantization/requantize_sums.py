"""Requantize sums: int32 [rows, channels] to uint8, by a multiplier of each channel. Oracle: `numerics.requantize`.

How accelerators round and what their accumulators hold, for kernels that leave their int32 sums; those of the CPU's own
arithmetic round as they add.
"""

from __future__ import annotations

import numpy as np

from ......ir.composites.outputs import Output
from ......numerics.rounding.narrow_accumulator import NarrowAccumulator
from ......numerics.rounding.requantize import Multiplier
from ..conv.channel_requantize import ChannelRequantize
from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, for_each_vector, load, prim_func, store, worthwhile


def requantize_sums(
    rows: int,
    channels: int,
    multiplier: Multiplier,
    output: Output,
    *,
    narrow: NarrowAccumulator | None = None,
    isa: str,
    threads: int = 1,
) -> Kernel:
    """Return the kernel of y = clamp(scaled(accumulated(sum)) + zero_point).

    Sums hold their biases; where the multiplier is of fixed point, what the accumulator holds is `max_value` at most.
    """
    scaling = ChannelRequantize(output, np.zeros(channels, np.int64), multiplier, "uint8", narrow=narrow)
    width = max(lanes_of(isa) // 8, 1)

    def emit(x: Buffer, *others: Buffer) -> None:
        buffers = dict(zip(scaling.constants, others, strict=False))
        with chunked(rows, worthwhile(threads, rows * channels * 4, rows)) as row:

            def one(start: Expr, lanes: int) -> None:
                at = row * channels + start
                total = load(x, at, lanes, "int64")
                store(others[-1], at, scaling.result(total, scaling.loaded(buffers, start, lanes), lanes), lanes)

            for_each_vector(channels, width, 1, one)

    constants = [(name, channels, str(value.dtype)) for name, value in scaling.constants.items()]
    arguments = [("x", rows * channels, "int32"), *constants, ("y", rows * channels, "uint8")]
    func = prim_func(arguments, emit)
    return Kernel(name="requantize_sums", isa=isa, func=func, constants=tuple(scaling.constants.values()))
