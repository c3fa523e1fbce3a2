"""Group normalization of uint8 images, channels last: integer sums, then one multiply-add for each value.

Oracle: `numerics.group_norm`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import Output
from ......numerics.quantized.normalization import GROUP_NORM_MAX_VALUES, scaled_epsilon
from ......runtime.shapes import limits, surpasses
from ......runtime.size import is_open
from ..language.kernel import Kernel
from ..language.rounding import requantized
from ..language.vectors import Buffer, Expr, float_of, intrinsic, load, prim_func, splat, store, vector_type
from .channel_groups import ChannelGroups

_OPERATIONS = 4
"""Elementary operations that a value costs, for the choice of threads."""
_BLOCK = 1 << 15
"""Pixels whose squares, each up to 255 * 255, an int32 holds the sum of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupNormSpec:
    """uint8 [images, pixels, channels] of `scale` to uint8; the input's zero point cancels."""

    groups: ChannelGroups
    scale: float
    epsilon: float
    out_scale: float
    output: Output


def group_norm(spec: GroupNormSpec, *, gamma: npt.NDArray[np.float32], beta: npt.NDArray[np.float32], isa: str) -> Kernel:
    """Return the kernel of y = (x - mean) / sqrt(variance + epsilon) * gamma + beta; threads share the groups."""
    groups = spec.groups
    assert gamma.shape == beta.shape == (groups.channels,), "a factor and an addend for each channel"
    assert not surpasses(groups.count, GROUP_NORM_MAX_VALUES), "the rule sees to it"
    scale = np.float32(spec.out_scale)
    constants = tuple((values / scale).astype(np.float32) for values in (gamma, beta))

    def emit(x: Buffer, factors: Buffer, addends: Buffer, y: Buffer) -> None:
        with groups.parts(_OPERATIONS) as index:
            start, channel = groups.start(index)
            sums: tuple[Any, Any] = (B.alloc_buffer((groups.part,), "int64"), B.alloc_buffer((groups.part,), "int64"))
            lines: tuple[Any, Any] = (B.alloc_buffer((groups.part,), "float32"), B.alloc_buffer((groups.part,), "float32"))
            _sum(groups, x, start, sums)
            groups.each_group(lambda first: _line(spec, sums, lines, (factors, addends), channel, first))

            def write(first: Expr, pieces: list[tuple[int, int]]) -> None:
                with B.serial(0, groups.pixels) as pixel:
                    base = B.Bind(start + pixel * groups.channels + first)
                    for at, lanes in pieces:
                        multiplier, bias = (load(values, first + at, lanes) for values in lines)
                        value = load(x, base + at, lanes, "int32")
                        store(y, base + at, requantized(value, multiplier, spec.output, lanes, bias=bias), lanes)

            groups.strips(write)

    names = ("x", "gamma", "beta", "y")
    arguments = [(name, groups.elements, "uint8") if name in "xy" else (name, groups.channels, "float32") for name in names]
    most = limits((groups.count, GROUP_NORM_MAX_VALUES))
    return Kernel(name="group_norm", isa=isa, func=prim_func(arguments, emit), constants=constants, limits=most)


def _sum(groups: ChannelGroups, x: Buffer, start: Expr, sums: tuple[Buffer, Buffer]) -> None:
    """Emit the sums of each channel's values and of their squares."""

    def strip(first: Expr, pieces: list[tuple[int, int]]) -> None:
        def block(begin: Expr, end: Expr, *, is_first: bool) -> None:
            accumulators: list[Any] = [B.alloc_buffer((2 * lanes,), "int32", scope="local") for _, lanes in pieces]
            for total, (_, lanes) in zip(accumulators, pieces, strict=True):
                for place in (0, lanes):
                    store(total, place, splat(B.int32(0), lanes), lanes)
            with B.serial(begin, end) as pixel:
                base = B.Bind(start + pixel * groups.channels + first)
                for total, (at, lanes) in zip(accumulators, pieces, strict=True):
                    value = B.Bind(load(x, base + at, lanes, "int32"))
                    store(total, 0, load(total, 0, lanes) + value, lanes)
                    store(total, lanes, load(total, lanes, lanes) + value * value, lanes)
            for total, (at, lanes) in zip(accumulators, pieces, strict=True):
                for place, target in enumerate(sums):
                    value = load(total, place * lanes, lanes).astype(vector_type("int64", lanes))
                    before = splat(B.int64(0), lanes) if is_first else load(target, first + at, lanes)
                    store(target, first + at, before + value, lanes)

        pixels = groups.pixels
        if not is_open(pixels):
            for begin in range(0, pixels, _BLOCK):
                block(begin, min(begin + _BLOCK, pixels), is_first=begin == 0)
            return
        block(0, B.min(B.int32(0) + pixels, B.int32(_BLOCK)), is_first=True)
        with B.serial(1, (pixels + (_BLOCK - 1)) // _BLOCK) as number:
            block(number * _BLOCK, B.min(B.int32(0) + pixels, (number + 1) * _BLOCK), is_first=False)

    groups.strips(strip)


def _line(
    spec: GroupNormSpec,
    sums: tuple[Buffer, Buffer],
    lines: tuple[Buffer, Buffer],
    constants: tuple[Buffer, Buffer],
    channel: Expr,
    first: Expr,
) -> None:
    """Emit what the values of a group's channels are multiplied by, and what is added."""
    groups = spec.groups
    totals: Any = B.alloc_buffer((2,), "int64", scope="local")
    for place in range(2):
        B.buffer_store(totals, B.int64(0), [place])
    with B.serial(0, groups.size) as member:
        for place, values in enumerate(sums):
            B.buffer_store(totals, totals[place] + values[first + member], [place])
    total = B.Bind(totals[0])
    spread = B.Bind(totals[1] * (B.int64(0) + groups.count) - total * total)
    variance = B.Bind(spread.astype("float32") / float_of(groups.count * groups.count))
    root = intrinsic("llvm.sqrt", "float32", variance + B.float32(float(scaled_epsilon(spec.epsilon, spec.scale))))
    inverse = B.Bind(B.float32(1) / root)
    mean = B.Bind(total.astype("float32") / float_of(groups.count))
    with B.serial(0, groups.size) as member:
        multiplier = B.Bind(inverse * constants[0][channel + first + member])
        bias = intrinsic("llvm.fma", "float32", B.float32(-1) * mean, multiplier, constants[1][channel + first + member])
        B.buffer_store(lines[0], multiplier, [first + member])
        B.buffer_store(lines[1], bias, [first + member])
