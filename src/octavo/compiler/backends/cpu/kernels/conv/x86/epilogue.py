"""Epilogue: int32 accumulators in registers become uint8 outputs in memory, as `numerics.requantize` defines.

It narrows `group` vectors of accumulators at a time (1, 2 or 4). Packing instructions work within 128-bit blocks, so a group
does not hold its channels in order: lane_order.py says which channel each lane holds, and weights are packed accordingly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from .......ir.composites.outputs import Output
from ...language.rounding import scaled
from ...language.vectors import Expr, shuffled, store_partial
from ...language.x86 import vector as v
from ..loops.packing import Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """One group of sums in registers, of which the first `valid` become outputs from out[target] on.

    `values` are the lanes of an epilogue's `channel_values`; `parameters` are the scales and zero points that come at run time.
    """

    out: Expr
    target: Expr
    accumulators: list[Expr]
    values: dict[str, list[Expr]]
    valid: int
    parameters: Expr | None
    lanes: int = v.LANES


@dataclass(frozen=True, kw_only=True, slots=True)
class Epilogue:
    """How accumulators become outputs.

    Parameters
    ----------
    output
        Zero point and clamp of the result.
    may_exceed_int32
        Whether |accumulator * multiplier| could reach 2**31, so that it must be clamped before it becomes an integer.
    packs_alone
        Whether a single vector is narrowed by packing instructions of 256 bits: without AVX-512 nothing else truncates lanes.
    """

    output: Output
    may_exceed_int32: bool
    packs_alone: bool = False
    out_dtype: ClassVar[str] = "uint8"

    def channel_values(self, weights: Weights) -> dict[str, npt.NDArray[Any]]:
        """Return the constants it reads, one value for each output channel."""
        values: dict[str, npt.NDArray[Any]] = {"multiplier": weights.multiplier}
        return {**values, "real_bias": weights.real_bias} if self.output.real_bias else values

    def emit(self, group: Group) -> None:
        """Emit the store of one group's outputs."""
        biases = group.values.get("real_bias", [None] * len(group.accumulators))
        operands = zip(group.accumulators, group.values["multiplier"], biases, strict=True)
        self.store(group, [self._scale(*each, group.lanes) for each in operands])

    def store(self, group: Group, reals: list[Expr]) -> None:
        """Emit the store of one group's numbers, rounded to int32, without the zero point."""
        narrow = self._narrow(reals, group.lanes)
        store_partial(group.out, group.target, narrow, len(reals) * group.lanes, group.valid)

    def _narrow(self, reals: list[Expr], lanes: int) -> Expr:
        """Return one group's outputs in channel order, uint8 x (len(reals) * lanes)."""
        if len(reals) == 1 and self.packs_alone and lanes == v.LANES:
            return self._clamp(self._packed_alone(reals[0]), lanes)
        if len(reals) == 1:
            low, high = self.output.qmin, self.output.qmax
            limit = T.int32(1 << 16)  # keeps the sum with the zero point in int32
            value = T.min(T.max(reals[0], T.broadcast(-limit, lanes)), T.broadcast(limit, lanes))
            value = value + T.broadcast(T.int32(self.output.zero_point), lanes)
            return T.cast(
                T.min(T.max(value, T.broadcast(T.int32(low), lanes)), T.broadcast(T.int32(high), lanes)), f"uint8x{lanes}"
            )
        words = [self._words(reals[i], reals[i + 1], lanes) for i in range(0, len(reals), 2)]
        if len(words) == 1:
            low, high = (T.broadcast(T.int16(bound), 2 * lanes) for bound in (self.output.qmin, self.output.qmax))
            return T.cast(T.min(T.max(words[0], low), high), f"uint8x{2 * lanes}")
        return self._clamp(v.pack_uint8(words[0], words[1], lanes), 4 * lanes)

    def _packed_alone(self, real: Expr) -> Expr:
        """Return 16 int32 plus the zero point, saturated to uint8, in their order."""
        low, high = (shuffled([real], range(first, first + 8)) for first in (0, 8))
        words = T.Bind(self._words(low, high, 8))
        packed = v.pack_uint8(words, words, 8)  # by dwords: low's first, high's first, both again, then their second ones
        return shuffled([packed], [4 * dword + byte for dword in (0, 4, 1, 5) for byte in range(4)])

    def _scale(self, acc: Expr, multiplier: Expr, bias: Expr | None, lanes: int) -> Expr:
        """Return rint(float32(acc) * multiplier), or rint of a fused multiply-add with a bias.

        No other sum follows the product, so nothing else can be contracted into an FMA.
        """
        product = scaled(acc, multiplier, bias, lanes)
        return v.round_half_even(limited(product, lanes) if self.may_exceed_int32 else product, lanes)

    def _words(self, low: Expr, high: Expr, lanes: int) -> Expr:
        """Return two vectors as int16 plus the zero point; saturation on the way never changes what a clamp to uint8 gives."""
        words = v.pack_int16(low, high, lanes)
        return v.add_saturate_int16(words, self.output.zero_point, 2 * lanes) if self.output.zero_point else words

    def _clamp(self, value: Expr, lanes: int) -> Expr:
        if self.output.qmin > 0:
            value = T.max(value, T.broadcast(T.uint8(self.output.qmin), lanes))
        if self.output.qmax < 255:
            value = T.min(value, T.broadcast(T.uint8(self.output.qmax), lanes))
        return value


def limited(value: Expr, lanes: int) -> Expr:
    """Return float32 numbers within what int32 holds; no result in 8 bits is another for it."""
    limit = 65536.0  # beyond every [qmin - zero_point; qmax - zero_point], and an integer in float32
    return T.min(T.max(value, T.broadcast(T.float32(-limit), lanes)), T.broadcast(T.float32(limit), lanes))
