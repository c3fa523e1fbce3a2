"""A histogram whose merge is exact: its range is a power of two and doubles by adding neighbouring bins.

The 2048 bins split [-2^e; 2^e) evenly into half-open intervals. A value x falls into bin floor(x * 2^(10 - e)) + 1024; the
factor is a power of two, so the product is exact and so is the bin. Doubling the range maps bin i to
floor((i - 1024) / 2) + 1024, which is the bin that the value itself would have had: coarsening composes, so any split, order or
grouping of the same values ends in the same counts. Nothing here knows which tensor it counts, and nothing here needs TVM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BINS = 2048
"""Bins of every histogram: an 8-bit step is at least 4 bins wide even where only one side of zero is in use."""
ZERO_BIN = BINS // 2
"""The bin whose lower edge is 0."""
MIN_EXPONENT = -64
"""Smallest exponent in use; tensors of smaller values (zeros, denormals) are counted in [-2^-64; 2^-64)."""
MAX_EXPONENT = 128
"""Largest exponent: every finite float32 lies within (-2^128; 2^128)."""


def exponent_of(max_abs: float) -> int:
    """Return the smallest e >= MIN_EXPONENT with max_abs < 2^e, for a finite float32 magnitude."""
    assert 0 <= max_abs < 2.0**MAX_EXPONENT, f"{max_abs} is not a finite float32 magnitude"
    # frexp: max_abs = m * 2^e with m in [0.5; 1), so max_abs < 2^e and max_abs >= 2^(e - 1).
    return max(int(np.frexp(np.float64(max_abs))[1]), MIN_EXPONENT) if max_abs else MIN_EXPONENT


def bin_of(values: npt.NDArray[np.float32], exponent: int) -> npt.NDArray[np.int64]:
    """Return the bin of each finite float32 value; every |value| must be below 2^exponent."""
    scaled = np.floor(values.astype(np.float64) * 2.0 ** (BINS.bit_length() - 2 - exponent))
    return scaled.astype(np.int64) + ZERO_BIN


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Histogram:
    """Counts of float32 values over [-2^exponent; 2^exponent).

    Parameters
    ----------
    exponent
        In [MIN_EXPONENT; MAX_EXPONENT].
    counts
        int64 (2048,), bin i counts values in [(i - 1024) * bin_width; (i - 1023) * bin_width).
    """

    exponent: int
    counts: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        """Check exponent and counts; ValueError says which is off."""
        if not MIN_EXPONENT <= self.exponent <= MAX_EXPONENT:
            raise ValueError(f"exponent must lie in [{MIN_EXPONENT}; {MAX_EXPONENT}], got {self.exponent}")
        if self.counts.shape != (BINS,) or self.counts.dtype != np.int64:
            raise ValueError(f"counts must be int64 ({BINS},), got {self.counts.dtype} {self.counts.shape}")
        if (self.counts < 0).any():
            raise ValueError("counts must not be negative")

    @staticmethod
    def empty() -> Histogram:
        """Return the histogram of no values: merging it changes nothing."""
        return Histogram(exponent=MIN_EXPONENT, counts=np.zeros(BINS, np.int64))

    @staticmethod
    def of(values: npt.NDArray[np.float32]) -> Histogram:
        """Count finite float32 values of any shape."""
        flat = values.reshape(-1)
        if not flat.size:
            return Histogram.empty()
        exponent = exponent_of(float(np.abs(flat).max()))
        return Histogram(exponent=exponent, counts=np.bincount(bin_of(flat, exponent), minlength=BINS).astype(np.int64))

    def __eq__(self, other: object) -> bool:
        """Compare exponent and counts."""
        return isinstance(other, Histogram) and self.exponent == other.exponent and np.array_equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]  # mutable counts

    @property
    def bin_width(self) -> float:
        """Width of one bin, a power of two."""
        return 2.0 ** (self.exponent + 1) / BINS

    @property
    def total(self) -> int:
        """Number of values counted."""
        return int(self.counts.sum())

    def coarsened(self, exponent: int) -> Histogram:
        """Return the same values counted over [-2^exponent; 2^exponent), a range no smaller than this one's."""
        assert exponent >= self.exponent, "a histogram can only be coarsened"
        counts = self.counts
        # After eleven doublings every value lies in one of the two bins beside zero, and stays there.
        for _ in range(min(exponent - self.exponent, BINS.bit_length() - 1)):
            doubled = np.zeros(BINS, np.int64)
            doubled[ZERO_BIN // 2 : ZERO_BIN // 2 + ZERO_BIN] = counts.reshape(-1, 2).sum(axis=1)
            counts = doubled
        return Histogram(exponent=exponent, counts=counts)

    def merge(self, other: Histogram) -> Histogram:
        """Return the histogram of both sets of values; associative, commutative and exact."""
        exponent = max(self.exponent, other.exponent)
        return Histogram(exponent=exponent, counts=self.coarsened(exponent).counts + other.coarsened(exponent).counts)

    @staticmethod
    def merged(parts: Iterable[Histogram]) -> Histogram:
        """Return the histogram of all parts' values."""
        total = Histogram.empty()
        for part in parts:
            total = total.merge(part)
        return total

    def edge(self, index: int) -> float:
        """Return the lower edge of bin `index`, exact; index 2048 is the upper edge of the last bin."""
        return (index - ZERO_BIN) * self.bin_width
