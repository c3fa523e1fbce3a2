"""How one array relates to another: the same, permuted, reshaped, scaled per channel, moved by a whole number. NumPy only.

A relation is evidence, found in values: it is claimed only where every element agrees. It knows no compiler and no quantization.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


_MAX_PERMUTED_RANK = 5
_MIN_VALUES = 8
# float32's rounding in a few ops: as a share of the largest magnitude, of a channel's, and of what cancelled in a channel.
_CLOSE = 6e-6
_CLOSE_CHANNEL = 1e-5
_CLOSE_CANCELLED = 1e-6
_OPS_OF_CLOSE = 4
_INFINITE = 3e38  # no value of a network: float32 and bfloat16 end at 3.4e38


def _no_factors() -> Array:
    return np.ones(1, np.float64)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Relation:
    """The value that is there now, in terms of the value in the source: permute(source * factors + shift), reshaped.

    Parameters
    ----------
    permutation
        Axes of the source in the order in which they lie now, e.g. (0, 2, 3, 1) for NCHW kept as NHWC; None where unchanged.
    shape
        The shape now where it is no permutation of the source's (the elements keep their order), else None.
    axis
        Axis of the source along which `factors` lie; None where one factor holds for all.
    factors
        float64; NaN for a channel that was zero in all the evidence, so that any factor would do.
    shift
        Added to integers: 128 where int8 is kept as uint8.
    """

    permutation: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    axis: int | None = None
    factors: Array = field(default_factory=_no_factors)
    shift: int = 0

    @property
    def is_scaled(self) -> bool:
        """Whether values differ by factors."""
        return bool(np.any(self.factors != 1.0))

    @property
    def is_rearranged(self) -> bool:
        """Whether elements lie elsewhere, or are relabelled."""
        return self.permutation is not None or self.shape is not None or self.shift != 0

    @property
    def is_identity(self) -> bool:
        """Whether the value is the source's own."""
        return not self.is_scaled and not self.is_rearranged

    def apply(self, source: Array) -> Array:
        """Return what is expected now (float64, int64 for integers) where the source's value is `source`."""
        value = _wide(source)
        if self.is_scaled:
            factors = np.nan_to_num(self.factors, nan=0.0)
            value = value * (factors if self.axis is None else _along(factors, value.ndim, self.axis))
        if self.shift:
            value = value + self.shift
        if self.permutation is not None:
            value = value.transpose(self.permutation)
        return value.reshape(self.shape) if self.shape is not None else value

    def undo(self, now: Array, shape: tuple[int, ...]) -> Array:
        """Return what the source's value, of this shape, must have been; of a channel whose factor nobody knows what is there."""
        order = tuple(range(len(shape))) if self.permutation is None else self.permutation
        value = _wide(now).reshape([shape[axis] for axis in order]).transpose(np.argsort(order))
        if self.shift:
            value = value - self.shift
        if self.is_scaled:
            factors = np.where(np.isnan(self.factors) | (self.factors == 0), 1.0, self.factors)
            value = value / (factors if self.axis is None else _along(factors, value.ndim, self.axis))
        return value

    def __str__(self) -> str:
        """Describe it, e.g. "permuted (0, 2, 3, 1); scaled along axis 1"."""
        parts: list[str] = []
        if self.permutation is not None:
            parts.append(f"permuted {self.permutation}")
        if self.shape is not None:
            parts.append(f"reshaped to {self.shape}")
        if self.is_scaled:
            where = "by one factor" if self.axis is None else f"along axis {self.axis} by {self.factors.size} factors"
            parts.append(f"scaled {where} [{np.nanmin(self.factors):.6g}; {np.nanmax(self.factors):.6g}]")
        if self.shift:
            parts.append(f"relabelled by {self.shift:+d}")
        return "; ".join(parts) or "the same"


SAME = Relation()


def find_relation(
    source: Array, now: Array, *, tolerance: float, permutations: Iterable[tuple[int, ...]] = (), with_factors: bool = True
) -> Relation | None:
    """Return how `now` comes from `source`, the simplest way first, or None.

    Parameters
    ----------
    tolerance
        Largest difference, as a share of the largest magnitude. Integers must agree exactly.
    permutations
        Further permutations under which factors are looked for, besides the identity.
    with_factors
        Whether to look for factors at all: they fit more easily, so they need evidence that a moved value does not.
    """
    if source.size != now.size or (source.dtype.kind == "f") != (now.dtype.kind == "f"):
        return None
    if source.shape == now.shape and agree(source, now, tolerance):
        return SAME
    if not is_telling(source):
        return None
    shift = _shift(source, now)
    if shift is None:
        return None
    for permutation in _permutations(source.shape, now.shape):
        relation = Relation(permutation=permutation, shift=shift)
        if agree(relation.apply(source), now, tolerance):
            return relation
    if source.shape != now.shape and agree(_wide(source).reshape(now.shape) + shift, now, tolerance):
        return Relation(shape=now.shape, shift=shift)
    return _scaled(source, now, tolerance, permutations) if with_factors and source.dtype.kind == "f" else None


def agree(a: Array, b: Array, tolerance: float) -> bool:
    """Return whether two arrays of one shape hold the same values; NaN and infinities must stand in the same places.

    So must what stands for an infinity, the end of float32's range: a pool has it where a window holds no pixel. As a magnitude
    it would let any others agree.
    """
    if a.shape != b.shape:
        return False
    if a.dtype.kind in "biu" and b.dtype.kind in "biu":
        return bool(np.array_equal(_wide(a), _wide(b)))
    wide_a, wide_b = (np.where(np.abs(wide) >= _INFINITE, np.copysign(np.inf, wide), wide) for wide in (_wide(a), _wide(b)))
    finite = np.isfinite(wide_a)
    if not np.array_equal(finite, np.isfinite(wide_b)):
        return False
    if not finite.all():
        if not np.array_equal(wide_a[~finite], wide_b[~finite], equal_nan=True):
            return False
        wide_a, wide_b = wide_a[finite], wide_b[finite]
    if not wide_a.size:
        return True
    return bool(np.max(np.abs(wide_a - wide_b)) <= tolerance * max(float(np.max(np.abs(wide_a))), 1e-30))


def agree_closely(a: Array, b: Array, ops: int = 1) -> bool:
    """Return whether two float32 arrays of one shape differ by the rounding of `ops` ops alone, one behind the other.

    Rounding is small beside what was summed: beside the array's largest magnitude, and of a channel whose values are small beside
    the channel's own, unless large terms cancelled there. A bias that was left out is not, however small beside the array.
    """
    growth = max(1.0, ops / _OPS_OF_CLOSE)
    if not agree(a, b, _CLOSE * growth):
        return False
    if a.ndim < 2 or not a.size:
        return True
    wide_a, difference = np.abs(_wide(a)), _difference(a, b)
    finite = np.isfinite(difference) & (wide_a < _INFINITE)
    wide_a, difference = np.where(finite, wide_a, 0), np.where(finite, difference, 0)
    floor = _CLOSE_CANCELLED * growth * float(np.max(wide_a))
    for axis in {1, a.ndim - 1}:
        others = tuple(index for index in range(a.ndim) if index != axis)
        if a.size // a.shape[axis] < _MIN_VALUES:
            continue
        if np.any(np.max(difference, axis=others) > _CLOSE_CHANNEL * growth * np.max(wide_a, axis=others) + floor):
            return False
    return True


def largest_difference(a: Array, b: Array) -> float:
    """Return the largest difference of two arrays of one shape, where both are finite."""
    difference = _difference(a, b)
    return float(np.max(difference, where=np.isfinite(difference), initial=0.0))


def is_telling(value: Array) -> bool:
    """Return whether an array holds enough different values to be recognised by them."""
    return np.unique(value.reshape(-1)[:4096]).size >= _MIN_VALUES


def _difference(a: Array, b: Array) -> Array:
    """Return how far elements are from each other; NaN for two infinities, which masks of attention hold."""
    with np.errstate(invalid="ignore"):
        return np.abs(_wide(a) - _wide(b))


def _wide(value: Array) -> Array:
    return value.astype(np.float64 if value.dtype.kind == "f" else np.int64)


def _along(factors: Array, ndim: int, axis: int) -> Array:
    return factors.reshape([-1 if index == axis else 1 for index in range(ndim)])


def _shift(source: Array, now: Array) -> int | None:
    """Return what integers moved by: 0, +-128 or +-32768 between signed and unsigned; None if the dtypes differ otherwise."""
    if source.dtype == now.dtype or source.dtype.kind == "f":
        return 0
    shifts = {("int8", "uint8"): 128, ("uint8", "int8"): -128, ("uint16", "int16"): -32768, ("int16", "uint16"): 32768}
    return shifts.get((str(source.dtype), str(now.dtype)))


def _permutations(source: tuple[int, ...], now: tuple[int, ...]) -> list[tuple[int, ...] | None]:
    """Return the orders of axes that lead from one shape to the other, None for the one that changes nothing.

    Axes of size 1 may go anywhere; of the orders that differ by them alone the first stands for all.
    """
    if sorted(source) != sorted(now) or len(source) > _MAX_PERMUTED_RANK:
        return []
    found: dict[tuple[int, ...], tuple[int, ...] | None] = {}
    for order in itertools.permutations(range(len(source))):
        if tuple(source[axis] for axis in order) == now:
            moved = tuple(axis for axis in order if source[axis] != 1)
            found.setdefault(moved, None if order == tuple(range(len(source))) else order)
    return list(found.values())


def _scaled(source: Array, now: Array, tolerance: float, permutations: Iterable[tuple[int, ...]]) -> Relation | None:
    for permutation in (None, *permutations):
        if permutation is not None and (len(permutation) != source.ndim or permutation == tuple(range(source.ndim))):
            continue
        if tuple(source.shape[axis] for axis in permutation or range(source.ndim)) != now.shape:
            continue
        back = _wide(now) if permutation is None else _wide(now).transpose(np.argsort(permutation))
        for axis, factors in _factors(_wide(source), back):
            relation = Relation(permutation=permutation, axis=axis, factors=factors)
            if agree(relation.apply(source), now, tolerance):
                return relation
    return None


def _factors(x: Array, y: Array) -> Iterable[tuple[int | None, Array]]:
    """Propose factors: one for all, then one for each channel of each axis; least squares, which is exact where they exist."""
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return
    # Along an axis of few elements for each channel, factors fit anything: they would prove nothing.
    axes = sorted((axis for axis in range(x.ndim) if x.shape[axis] * _MIN_VALUES <= x.size), key=lambda axis: (axis != 1, axis))
    for axis in (None, *axes):
        others = tuple(index for index in range(x.ndim) if index != axis)
        norm = np.sum(x * x, axis=others if axis is not None else None)
        product = np.sum(x * y, axis=others if axis is not None else None)
        with np.errstate(invalid="ignore", divide="ignore"):
            factors = np.atleast_1d(np.where(norm > 0, product / norm, np.nan))
        if np.isfinite(factors).any() and not np.any(factors == 0):
            yield axis, factors
