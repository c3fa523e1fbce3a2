"""What an observer is asked for, and what one value means for the statistics (`numerics.statistics.observer_state`).

The definition that observers of every instruction set share; it walks no tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm.script.ir_builder import tirx as B

from ......numerics.statistics.histogram import SHIFT
from ......numerics.statistics.observer_state import table
from ......runtime.size import is_open
from ..language.vectors import Buffer, Expr, bound, split

_INFINITY = 0x7F800000
_MAGNITUDE = 0x7FFFFFFF


@dataclass(frozen=True, kw_only=True, slots=True)
class ObserveSpec:
    """Observation of a float32 tensor that lies in memory as [outer][channels][inner].

    `plane` is 0 where positions count as the memory lies; a tensor of NCHW source that lies as NHWC states its height * width
    (then inner is 1), and positions count as the source lies. With bounds, the kernel's result is the tensor clamped to
    [low; high]; without, an int32 number that means nothing.
    """

    outer: int
    channels: int
    inner: int
    plane: int = 0
    low: float = -math.inf
    high: float = math.inf

    @property
    def size(self) -> int:
        """Elements."""
        return self.outer * self.channels * self.inner

    @property
    def clamps(self) -> bool:
        """Whether the result is the clamped tensor."""
        return not (math.isinf(self.low) and math.isinf(self.high))

    def position(self, index: Expr, channel: Expr) -> Expr:
        """Return the place in the source's order of the element at `index` in memory."""
        if not is_open(self.plane) and self.plane == 0:
            return index
        image, place = split(B.floordiv(index, self.channels), bound(self.plane))
        return (image * self.channels + channel) * self.plane + place


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """The buffers that an observer of `spec` writes, and how one value changes them."""

    spec: ObserveSpec
    ranges: Buffer
    counts: Buffer

    def count(self, code: Expr, index: int) -> None:
        """Emit one more value of a code, in table `index`."""
        at = B.Bind(code + table(index))
        B.buffer_store(self.counts, self.counts[at] + 1, [at])

    def widen(self, value: Expr, index: Expr, channel: Expr) -> None:
        """Emit what a value means for its channel's range; of NaN and infinities only the position is kept."""
        bits = B.Bind(B.reinterpret("int32", value) & _MAGNITUDE)
        least, greatest = channel, channel + self.spec.channels
        with B.If(bits < _INFINITY):
            with B.Then():
                B.buffer_store(self.ranges, B.min(self.ranges[least], value), [least])
                B.buffer_store(self.ranges, B.max(self.ranges[greatest], value), [greatest])
            with B.Else():
                left = self.spec.size - self.spec.position(index, channel)
                B.buffer_store(self.counts, B.max(self.counts[0], left), [0])

    def add(self, value: Expr, index: Expr, channel: Expr) -> None:
        """Emit all that one value means."""
        self.count(B.Cast("int32", B.reinterpret("uint32", value) >> B.uint32(SHIFT)), 0)
        self.widen(value, index, channel)


def clamped(value: Expr, spec: ObserveSpec) -> Expr:
    """Return a scalar within the bounds of `spec`."""
    return B.min(B.max(value, B.float32(spec.low)), B.float32(spec.high))
