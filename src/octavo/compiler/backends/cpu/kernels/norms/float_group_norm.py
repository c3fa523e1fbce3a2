"""Group normalization of float32 images, channels last: mean, variance about it, result. One text for every ISA.

The order of a group's sums is fixed, so a result doesn't depend on threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......numerics.floats.float_function import FloatFunction
from ..language.float_function import ElementMath
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, float_of, intrinsic, load, prim_func, splat, store
from .channel_groups import ChannelGroups

_OPERATIONS = 6
"""Elementary operations that a value costs, for the choice of threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatGroupNormSpec:
    """float32 [images, pixels, channels] to the same.

    `function` is applied to each normalized value and, if it has more inputs, to the elements of further tensors of that shape.
    """

    groups: ChannelGroups
    epsilon: float
    function: FloatFunction | None = None


def float_group_norm(
    spec: FloatGroupNormSpec, *, gamma: npt.NDArray[np.float32], beta: npt.NDArray[np.float32], isa: str
) -> Kernel:
    """Return the kernel of y = function((x - mean) / sqrt(variance + epsilon) * gamma + beta); threads share the groups."""
    groups = spec.groups
    assert gamma.shape == beta.shape == (groups.channels,), "a factor and an addend for each channel"
    function = spec.function
    others = 0 if function is None else function.inputs - 1

    def emit(x: Buffer, *buffers: Buffer) -> None:
        more, (factors, shifts, y) = buffers[:others], buffers[others:]
        with groups.parts(_OPERATIONS + (0 if function is None else function.operations)) as index:
            start, channel = groups.start(index)
            means: Any = B.alloc_buffer((groups.part,), "float32")
            scales: Any = B.alloc_buffer((groups.part,), "float32")
            _statistics(spec, x, start, means, scales)

            def write(first: Expr, pieces: list[tuple[int, int]]) -> None:
                with B.serial(0, groups.pixels) as pixel:
                    base = B.Bind(start + pixel * groups.channels + first)
                    for at, lanes in pieces:
                        place = channel + first + at
                        scale = load(scales, first + at, lanes) * load(factors, place, lanes)
                        value = (load(x, base + at, lanes) - load(means, first + at, lanes)) * scale + load(shifts, place, lanes)
                        if function is not None:
                            value = ElementMath(lanes).apply(function, [value, *(load(z, base + at, lanes) for z in more)])
                        store(y, base + at, value, lanes)

            groups.strips(write)

    names = ["x", *(f"z{number}" for number in range(others)), "gamma", "beta", "y"]
    sizes = [groups.channels if name in ("gamma", "beta") else groups.elements for name in names]
    func = prim_func([(name, size, "float32") for name, size in zip(names, sizes, strict=True)], emit)
    return Kernel(name="float.group_norm", isa=isa, func=func, constants=(gamma, beta))


def _statistics(spec: FloatGroupNormSpec, x: Buffer, start: Expr, means: Buffer, scales: Buffer) -> None:
    """Emit each channel's mean, and the inverse of its deviation: those of its group."""
    groups = spec.groups
    count = B.Bind(float_of(groups.count))

    def summed(target: Buffer, *, squared: bool) -> None:
        def strip(first: Expr, pieces: list[tuple[int, int]]) -> None:
            sums: list[Any] = [B.alloc_buffer((lanes,), "float32", scope="local") for _, lanes in pieces]
            for total, (_, lanes) in zip(sums, pieces, strict=True):
                store(total, 0, splat(B.float32(0), lanes), lanes)
            with B.serial(0, groups.pixels) as pixel:
                base = B.Bind(start + pixel * groups.channels + first)
                for total, (at, lanes) in zip(sums, pieces, strict=True):
                    value = load(x, base + at, lanes)
                    if squared:
                        value = B.Bind(value - load(means, first + at, lanes))
                        value = value * value
                    store(total, 0, load(total, 0, lanes) + value, lanes)
            for total, (at, lanes) in zip(sums, pieces, strict=True):
                store(target, first + at, load(total, 0, lanes), lanes)

        groups.strips(strip)

    def shared(target: Buffer, value: Any) -> None:
        """Give each channel of a group the value of the group's sum."""

        def group(first: Expr) -> None:
            total: Any = B.alloc_buffer((1,), "float32", scope="local")
            B.buffer_store(total, B.float32(0), [0])
            with B.serial(0, groups.size) as member:
                B.buffer_store(total, total[0] + target[first + member], [0])
            B.buffer_store(total, value(total[0] / count), [0])
            with B.serial(0, groups.size) as member:
                B.buffer_store(target, total[0], [first + member])

        groups.each_group(group)

    summed(means, squared=False)
    shared(means, lambda mean: mean)
    summed(scales, squared=True)
    epsilon = B.float32(float(np.float32(spec.epsilon)))
    shared(scales, lambda variance: B.float32(1) / intrinsic("llvm.sqrt", "float32", variance + epsilon))
