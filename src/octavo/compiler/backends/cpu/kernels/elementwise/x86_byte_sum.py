"""Sum of two vectors of quantized bytes, as `numerics.add` or `numerics.float_sum` defines it. Expressions only.

The bytes of a and b are interleaved and widened to pairs of words, (a, b) in one dword: a multiply-add of pairs computes
a * a_multiplier + b * b_multiplier. Multipliers have 22 bits and words 16, so there are two of them, for the upper and the lower
bits. Packing brings the bytes back in order, for it works within 128-bit blocks as interleaving does.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from ......numerics import add_parameters
from ..language.interleave import interleave
from ..language.vectors import Expr, splat
from ..language.x86 import vector as v
from .float_sum import float_sum
from .spec import AddSpec

_LOW_BITS = 11


class ByteSum:
    """Adds vectors of 16, 32 or 64 bytes."""

    def __init__(self, spec: AddSpec) -> None:
        self.spec = spec
        self._p = add_parameters(spec.a_scale, spec.a_zero_point, spec.b_scale, spec.b_zero_point, spec.out_scale)
        assert max(self._p.a_multiplier, self._p.b_multiplier) <= 1 << 21, "two words hold a multiplier"

    def of(self, a: Expr, b: Expr, lanes: int) -> Expr:
        """Return the uint8 sums of two uint8 vectors."""
        zero = T.Bind(T.broadcast(T.uint8(0), lanes))
        a, b = T.Bind(a), T.Bind(b)
        halves = [T.Bind(interleave(a, b, lanes, 1, high=high)) for high in (False, True)]
        # dword 4 q + r of vector j: byte 16 q + 4 j + r of a, and above it that of b
        pairs = [T.Bind(interleave(half, zero, lanes, 1, high=high)) for half in halves for high in (False, True)]
        sums = [self._sum(pair, lanes // 4) for pair in pairs]
        words = [T.Bind(v.pack_int16(sums[i], sums[i + 1], lanes // 4)) for i in (0, 2)]
        out = self.spec.output
        if self.spec.float_sum is not None:
            return v.pack_uint8(words[0], words[1], lanes // 4)
        # Saturation on the way never changes what the clamp gives.
        if out.zero_point:
            words = [v.add_saturate_int16(word, out.zero_point, lanes // 2) for word in words]
        value = v.pack_uint8(words[0], words[1], lanes // 4)
        value = T.max(value, T.broadcast(T.uint8(out.qmin), lanes)) if out.qmin > 0 else value
        return T.min(value, T.broadcast(T.uint8(out.qmax), lanes)) if out.qmax < 255 else value

    def _sum(self, pair: Expr, lanes: int) -> Expr:
        """Return int32 sums of the pairs: less the zero point, or as they are stored where they are sums of floats."""
        spec, p = self.spec, self._p
        if spec.float_sum is not None:
            dwords = T.Bind(T.reinterpret(f"int32x{lanes}", pair))
            a, b = dwords & splat(T.int32(0xFFFF), lanes), dwords >> splat(T.int32(16), lanes)
            return float_sum(spec.float_sum, spec.output, spec.relabelling, a, b, lanes, dtype="int32")
        words = T.reinterpret(f"int16x{2 * lanes}", pair)
        upper = v.multiply_pairs(words, _multipliers(p.a_multiplier >> _LOW_BITS, p.b_multiplier >> _LOW_BITS, lanes), lanes)
        low = (1 << _LOW_BITS) - 1
        bias = splat(T.int32(p.bias), lanes)
        lower = v.dot_int16(bias, words, _multipliers(p.a_multiplier & low, p.b_multiplier & low, lanes), lanes)
        return ((upper << splat(T.int32(_LOW_BITS), lanes)) + lower) >> splat(T.int32(p.shift), lanes)


def _multipliers(a: int, b: int, lanes: int) -> Expr:
    """Return (a, b) in every dword, as int16."""
    return T.reinterpret(f"int16x{2 * lanes}", splat(T.int32(b << 16 | a), lanes))
