"""A histogram whose bins are float32 numbers rounded toward zero to 7 significant bits: no range to choose, nothing to rescale.

The bin of a value is the upper half of its own bits: exponent and 6 bits of the mantissa, `m = bits[30:17]`, with the value's
sign; 64 bins split every octave, so a bin is 1/64 to 1/127 as wide as the values in it are large. Bin 0 holds zeros of both signs
(and magnitudes below 2^-132, which no 8-bit number tells from 0). The bin depends on the value alone: merging adds counts, is
exact, associative and commutative, whatever the split, the order or the magnitudes.

Only bins in use are kept. Nothing here knows which tensor it counts, and nothing here needs TVM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MANTISSA_BITS = 6
"""Bits of the mantissa that a bin keeps: ends of a range are known to 1.6%, and interpolated within that."""
SHIFT = 23 - MANTISSA_BITS
"""How far the bits of a float32 are shifted right to become its code: sign, exponent and the kept bits of the mantissa."""
CODES = 1 << (32 - SHIFT)
"""Codes that any float32 can have, infinities and NaNs included."""
LAST_BIN = (0xFF << MANTISSA_BITS) - 1
"""The bin of the largest finite float32; bins are -LAST_BIN to LAST_BIN."""

_SIGN = CODES >> 1

Integers = npt.NDArray[np.int64]


def bin_of(values: npt.NDArray[np.float32]) -> Integers:
    """Return the bin of each finite float32 value: negative for negative values, 0 for zeros."""
    codes = (np.ascontiguousarray(values, np.float32).view(np.uint32) >> np.uint32(SHIFT)).astype(np.int64)
    magnitudes = codes & (_SIGN - 1)
    return np.where(codes & _SIGN, -magnitudes, magnitudes)


def edges_of(bins: Integers) -> npt.NDArray[np.float64]:
    """Return for each bin the end of it that is nearer to 0, exact; of LAST_BIN + 1 it is the 2^128 that no float32 reaches."""
    magnitudes = np.abs(bins)
    octave, part = magnitudes >> MANTISSA_BITS, magnitudes & ((1 << MANTISSA_BITS) - 1)
    # The octave 0 is that of the denormals: as wide as octave 1, without the leading bit.
    fraction = part / (1 << MANTISSA_BITS) + (octave > 0)
    return np.sign(bins) * np.ldexp(fraction, np.maximum(octave, 1) - 127)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Histogram:
    """Counts of finite float32 values by bin.

    Parameters
    ----------
    bins
        int64 (n,), bins in use, ascending, each in [-LAST_BIN; LAST_BIN].
    counts
        int64 (n,), values in each of them, at least 1.
    """

    bins: Integers
    counts: Integers

    def __post_init__(self) -> None:
        """Check bins and counts; ValueError says which is off."""
        if self.bins.ndim != 1 or self.bins.dtype != np.int64 or self.counts.dtype != np.int64:
            raise ValueError(f"bins and counts must be int64 (n,), got {self.bins.dtype} {self.bins.shape}, {self.counts.dtype}")
        if self.bins.shape != self.counts.shape:
            raise ValueError(f"{self.bins.size} bins have {self.counts.size} counts")
        if self.bins.size and (self.bins[0] < -LAST_BIN or self.bins[-1] > LAST_BIN or (np.diff(self.bins) <= 0).any()):
            raise ValueError(f"bins must ascend within [{-LAST_BIN}; {LAST_BIN}]")
        if (self.counts < 1).any():
            raise ValueError("counts must be positive; a bin without values is left out")

    @staticmethod
    def empty() -> Histogram:
        """Return the histogram of no values: merging it changes nothing."""
        return Histogram(bins=np.zeros(0, np.int64), counts=np.zeros(0, np.int64))

    @staticmethod
    def of(values: npt.NDArray[np.float32]) -> Histogram:
        """Count finite float32 values of any shape."""
        codes = np.ascontiguousarray(values.reshape(-1), np.float32).view(np.uint32) >> np.uint32(SHIFT)
        return Histogram.of_codes(np.bincount(codes, minlength=CODES))

    @staticmethod
    def of_codes(table: npt.NDArray[np.integer]) -> Histogram:
        """Take over counts by code, (CODES,); those of infinities and NaNs are left out."""
        assert table.shape == (CODES,), f"{table.shape} is no table of {CODES} counts"
        codes = np.flatnonzero(table != 0)  # of bools, which is ten times as fast
        magnitudes = codes & (_SIGN - 1)
        codes, magnitudes = codes[magnitudes <= LAST_BIN], magnitudes[magnitudes <= LAST_BIN]
        # Zeros of both signs have one bin.
        return _summed(np.where(codes & _SIGN, -magnitudes, magnitudes), table[codes].astype(np.int64))

    def __eq__(self, other: object) -> bool:
        """Compare bins and counts."""
        return (
            isinstance(other, Histogram) and np.array_equal(self.bins, other.bins) and np.array_equal(self.counts, other.counts)
        )

    __hash__ = None  # type: ignore[assignment]  # mutable arrays

    @property
    def total(self) -> int:
        """Number of values counted."""
        return int(self.counts.sum())

    def edges(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return the lower and upper end of each bin in use, float64 (n,); bin 0 spans [-2^-132; 2^-132]."""
        inner, outer = edges_of(self.bins), edges_of(self.bins + np.where(self.bins < 0, -1, 1))
        low, high = np.where(self.bins < 0, outer, inner), np.where(self.bins < 0, inner, outer)
        return np.where(self.bins == 0, -high, low), high

    def count_between(self, low: int, high: int) -> int:
        """Return how many values lie in the bins low to high, both included."""
        return int(self.counts[(self.bins >= low) & (self.bins <= high)].sum())

    def clamped(self, low: float, high: float) -> Histogram:
        """Return the histogram of the same values clamped to [low; high], exact: clamping moves a value to the bin of the bound.

        A value within the bin of a bound stays in it, whether the bound moves the value or not.
        """
        ends = np.clip(np.array([low, high], np.float32), -np.finfo(np.float32).max, np.finfo(np.float32).max)
        first, last = bin_of(ends)
        return _summed(np.clip(self.bins, first, last), self.counts)

    def merge(self, other: Histogram) -> Histogram:
        """Return the histogram of both sets of values; associative, commutative and exact."""
        return _summed(np.concatenate([self.bins, other.bins]), np.concatenate([self.counts, other.counts]))

    @staticmethod
    def merged(parts: Iterable[Histogram]) -> Histogram:
        """Return the histogram of all parts' values."""
        total = Histogram.empty()
        for part in parts:
            total = total.merge(part)
        return total


def _summed(bins: Integers, counts: Integers) -> Histogram:
    unique, inverse = np.unique(bins, return_inverse=True)
    total = np.zeros(unique.size, np.int64)
    np.add.at(total, inverse, counts)
    return Histogram(bins=unique, counts=total)
