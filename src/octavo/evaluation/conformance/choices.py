"""What a target description allows for one op, as numbers to make cases of. It makes no case."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...numerics import INTEGER_RANGE, PerAxis, PerTensor, QuantParams
from ...target import OpSupport, TargetDescription
from ...target.limits import Limit
from ...target.tensor_support import TensorSupport

_EIGHT_BITS = ("int8", "uint8")
_WITH_CASES = (*_EIGHT_BITS, "int16")
FULL_RANGE = 2**16
"""A magnitude of integers that takes in every one of their dtype."""
_MOST = 64
"""Sizes beyond are no border that a small model can show."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """What one op may be.

    Parameters
    ----------
    dtype
        Of its activations.
    rounding
        That its quantizes say.
    """

    target: TargetDescription
    support: OpSupport
    dtype: str
    rounding: str

    @property
    def op(self) -> str:
        """The op, as the description calls it."""
        return self.support.op

    @property
    def is_first(self) -> bool:
        """Whether these are the first of all that the description lists: full sweeps are made of them."""
        return self.dtype == dtypes_with_cases(self.support)[0] and self.rounding == self.support.roundings[0]

    @property
    def finer(self) -> int:
        """How much finer than of 8 bits the scales of activations are: over all of their integers the same range."""
        return 256 if self.is_wide else 1

    @property
    def is_wide(self) -> bool:
        """Whether activations have 16 bits."""
        return self.dtype not in _EIGHT_BITS

    @property
    def weight_dtype(self) -> str:
        """Dtype of a constant operand; "" where it takes none of 8 bits."""
        return next((dtype for dtype in self.support.tensor("weight").dtypes or () if dtype in _EIGHT_BITS), "")

    def generator(self, name: str) -> np.random.Generator:
        """Return the random numbers of a case: the same whatever other cases there are, and for every rounding."""
        return np.random.default_rng(zlib.crc32(f"{self.op} {name} {self.dtype}".encode()))

    def has(self, fusion: str) -> bool:
        """Return whether an op may follow in the same kernel."""
        return fusion in self.support.fusions

    def params(self, role: str, scale: float, zero_point: int = 0) -> QuantParams:
        """Return parameters of an activation, or what its role allows in their place; of 16 bits a scale covers what 8 do."""
        allowed, dtype = self._tensor(role), self._dtype(role)
        chosen = _scale(allowed, scale if dtype in _EIGHT_BITS else scale / 256)
        return QuantParams.per_tensor(dtype, chosen, self._zero_point(allowed, role, zero_point))

    def zero_points(self, role: str) -> tuple[int, ...]:
        """Return the least, a middle and the greatest zero point that a tensor may have."""
        low, high = INTEGER_RANGE[self._dtype(role)]
        wanted = (low, (low + high + 1) // 2 + 3, high)
        allowed = self._tensor(role)
        return tuple(dict.fromkeys(self._zero_point(allowed, role, each) for each in wanted))

    def weight_params(self, scales: npt.ArrayLike, zero_point: int, *, axis: int, channels: int) -> QuantParams:
        """Return parameters of a weight; several scales are along `axis`, where it may have them, else the first is all's."""
        allowed = self.support.tensor("weight")
        wanted = np.atleast_1d(np.asarray(scales, np.float64))
        granularity = allowed.granularity or ("per_tensor",)
        is_per_axis = "per_axis" in granularity and (wanted.size > 1 or "per_tensor" not in granularity)
        wanted = np.broadcast_to(wanted, (channels,)) if is_per_axis else wanted[:1]
        chosen = np.array([_scale(allowed, float(each)) for each in wanted], np.float32)
        zero = self._zero_point(allowed, "weight", zero_point)
        return QuantParams(
            dtype=self.weight_dtype,
            scale=chosen if is_per_axis else chosen[0],
            zero_point=np.full(chosen.shape if is_per_axis else (), zero, np.int32),
            granularity=PerAxis(axis) if is_per_axis else PerTensor(),
        )

    @property
    def weight_bounds(self) -> tuple[int, int]:
        """The least and the greatest integer of a symmetric weight."""
        low, high = INTEGER_RANGE[self.weight_dtype]
        is_narrow = self.support.weight_range == "narrow" and low < 0
        return (low + 1 if is_narrow else low), high

    def size(self, limit: str, wanted: int) -> int:
        """Return the least number from `wanted` on that a limit allows, else the greatest below."""
        bound = self.support.limits.get(limit, Limit())
        above = (number for number in range(wanted, 4 * _MOST + wanted) if bound.allows(number))
        below = (number for number in range(wanted, -1, -1) if bound.allows(number))
        return next(above, next(below, wanted))

    def sizes(self, limit: str, wanted: Iterable[int]) -> tuple[int, ...]:
        """Return those of the numbers that a limit allows, and its own bounds where a small model can have them."""
        bound = self.support.limits.get(limit, Limit())
        own = [number for number in (bound.minimum, bound.maximum, *bound.one_of) if number is not None and 0 < number <= _MOST]
        nearest = [self.size(limit, number) for number in wanted]
        return tuple(sorted({number for number in (*own, *nearest) if bound.allows(number)}))

    def is_allowed(self, limit: str, number: int) -> bool:
        """Return whether a limit allows a number."""
        return self.support.limits.get(limit, Limit()).allows(number)

    def _tensor(self, role: str) -> TensorSupport:
        return self.support.tensor(role)

    def _dtype(self, role: str) -> str:
        allowed = self._tensor(role).dtypes or (self.dtype,)
        return self.dtype if self.dtype in allowed else next((each for each in allowed if each in _WITH_CASES), self.dtype)

    def _zero_point(self, allowed: TensorSupport, role: str, wanted: int) -> int:
        if allowed.zero_point is not None:
            return allowed.zero_point
        if allowed.schemes == ("symmetric",):
            return 0
        low, high = INTEGER_RANGE[self.weight_dtype if role == "weight" else self._dtype(role)]
        return min(max(wanted, low), high)


def _scale(allowed: TensorSupport, wanted: float) -> float:
    """Return a scale that a tensor may have: `wanted`, or the power of two next to it, or the only one."""
    if allowed.scale is not None:
        return allowed.scale
    return 2.0 ** round(math.log2(wanted)) if allowed.scales == "power_of_two" else wanted


def dtypes_with_cases(support: OpSupport) -> tuple[str, ...]:
    """Return the dtypes that an op's activations may have and cases are made of."""
    return tuple(dtype for dtype in support.activations if dtype in _WITH_CASES)


def all_choices(target: TargetDescription, support: OpSupport) -> tuple[Choices, ...]:
    """Return an op's choices: the first rounding with each dtype, then the other roundings with the first dtype."""
    dtypes, roundings = dtypes_with_cases(support), support.roundings
    pairs = [(dtype, roundings[0]) for dtype in dtypes] + [(dtypes[0], rounding) for rounding in roundings[1:] if dtypes]
    return tuple(Choices(target=target, support=support, dtype=dtype, rounding=rounding) for dtype, rounding in pairs)
