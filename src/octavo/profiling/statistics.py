"""TensorStatistics: what a profile keeps of one tensor. Everything in it merges exactly; nothing in it depends on order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.identity import TensorEntry, TensorId, TensorKind
from ..numerics.statistics.histogram import Histogram, bin_of
from .buckets import BUCKETS

MAX_COUNT = 2**53 - 1
"""Largest count, the largest integer that every JSON reader keeps exact."""

Floats = npt.NDArray[np.float32]


def _no_floats() -> Floats:
    return np.zeros(0, np.float32)


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class NonFinite:
    """Where a tensor first held NaN or infinity: the number of the sample, and the index within the tensor of that run."""

    sample: int
    index: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TensorStatistics:
    """Statistics of one tensor over all samples (of a constant: over its values, once).

    Parameters
    ----------
    id, source_name, kind, op, layer, shape, dtype
        As in the model's TensorTable.
    count
        Values seen.
    zeros
        Values of bin 0 of the histogram: zeros of both signs, and magnitudes below 2^-132.
    non_finite
        Values that are NaN or infinite.
    first_non_finite
        The first of them, by number of sample and then by index; None where there is none, and for constants.
    minimum, maximum
        Of the finite values, exact float32; 0.0 where there are none.
    channel_axis
        Axis of the channels, or None where none is known.
    channel_minimum, channel_maximum
        float32 (channels,); (0,) without an axis. A channel without finite values has minimum +inf and maximum -inf.
    histogram
        Of the finite values.
    bucket_minimum, bucket_maximum
        float32 (BUCKETS,), of the finite values of each bucket of samples (see buckets.py), +inf and -inf in one that has none;
        (0,) for constants and where samples were not kept separate.
    """

    id: TensorId
    source_name: str
    kind: TensorKind
    op: str
    layer: str
    shape: tuple[int | str, ...]
    dtype: str
    count: int
    zeros: int
    non_finite: int
    first_non_finite: NonFinite | None
    minimum: float
    maximum: float
    channel_axis: int | None
    channel_minimum: Floats
    channel_maximum: Floats
    histogram: Histogram
    bucket_minimum: Floats = field(default_factory=_no_floats)
    bucket_maximum: Floats = field(default_factory=_no_floats)

    def __post_init__(self) -> None:
        """Check that the fields agree with each other; ValueError names the one that doesn't."""
        if not 0 <= self.count <= MAX_COUNT:
            raise ValueError(f"count must lie in [0; {MAX_COUNT}], got {self.count}")
        if not 0 <= self.non_finite <= self.count or not 0 <= self.zeros <= self.finite:
            raise ValueError(f"zeros {self.zeros} and non_finite {self.non_finite} do not fit count {self.count}")
        if self.histogram.total != self.finite:
            raise ValueError(f"histogram counts {self.histogram.total} values, expected {self.finite}")
        if self.histogram.count_between(0, 0) != self.zeros:
            raise ValueError(f"histogram counts {self.histogram.count_between(0, 0)} zeros, expected {self.zeros}")
        if self.first_non_finite is not None and (not self.non_finite or self.kind == "constant"):
            raise ValueError("first_non_finite must be null for a constant, and where non_finite is 0")
        if not (np.isfinite(self.minimum) and np.isfinite(self.maximum) and self.minimum <= self.maximum):
            raise ValueError(f"min {self.minimum} and max {self.maximum} must be finite and in order")
        if self.finite:
            ends = bin_of(np.array([self.minimum, self.maximum], np.float32))
            if not np.array_equal(ends, self.histogram.bins[[0, -1]]):
                spanned = self.histogram.bins[[0, -1]].tolist()
                raise ValueError(f"histogram spans bins {spanned}, min and max lie in {ends.tolist()}")
        self._check_channels()
        self._check_buckets()

    @property
    def finite(self) -> int:
        """Values that are neither NaN nor infinite."""
        return self.count - self.non_finite

    @property
    def non_finite_note(self) -> str:
        """Return the warning about values that are NaN or infinite, "" where there are none."""
        if not self.non_finite:
            return ""
        made_by = f"{self.op} output " if self.op else ""
        first = self.first_non_finite
        place = "" if first is None else f", the first in sample {first.sample} at {list(first.index)}"
        return f"{made_by}{self.source_name} held {self.non_finite} values that are NaN or infinite{place}"

    def _check_channels(self) -> None:
        low, high = self.channel_minimum, self.channel_maximum
        if low.shape != high.shape or low.ndim != 1 or (self.channel_axis is None) != (low.size == 0):
            raise ValueError("channel_min and channel_max must be lists of one length, empty where there is no channel_axis")
        if not _are_ranges(low, high):
            raise ValueError("channel_min and channel_max must be finite and in order, or both without a value")
        if low.size and self.finite and (float(low.min()) != self.minimum or float(high.max()) != self.maximum):
            raise ValueError("channel_min and channel_max do not fit min and max")

    def _check_buckets(self) -> None:
        low, high = self.bucket_minimum, self.bucket_maximum
        if low.shape != high.shape or low.shape not in ((0,), (BUCKETS,)) or (low.size and self.kind == "constant"):
            raise ValueError(f"bucket_min and bucket_max must both list {BUCKETS} numbers, or none; a constant's none")
        if not _are_ranges(low, high):
            raise ValueError("bucket_min and bucket_max must be finite and in order, or both without a value")
        if low.size and self.finite and (float(low.min()) != self.minimum or float(high.max()) != self.maximum):
            raise ValueError("bucket_min and bucket_max do not fit min and max")

    def merge(self, other: TensorStatistics) -> TensorStatistics:
        """Return the statistics of both sets of values; of a constant, its own. ValueError if they describe different tensors."""
        for name in ("id", "source_name", "kind", "op", "layer", "shape", "dtype", "channel_axis"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"{self.id}: {name} {getattr(self, name)!r} and {getattr(other, name)!r} differ")
        if self.channel_minimum.shape != other.channel_minimum.shape:
            raise ValueError(f"{self.id}: {self.channel_minimum.size} and {other.channel_minimum.size} channels")
        if self.kind == "constant":
            return self
        seen = [part for part in (self, other) if part.finite]
        separate = bool(self.bucket_minimum.size and other.bucket_minimum.size)
        firsts = [part.first_non_finite for part in (self, other) if part.first_non_finite is not None]
        return replace(
            self,
            count=self.count + other.count,
            zeros=self.zeros + other.zeros,
            non_finite=self.non_finite + other.non_finite,
            first_non_finite=min(firsts, default=None),
            minimum=min((part.minimum for part in seen), default=0.0),
            maximum=max((part.maximum for part in seen), default=0.0),
            channel_minimum=np.minimum(self.channel_minimum, other.channel_minimum),
            channel_maximum=np.maximum(self.channel_maximum, other.channel_maximum),
            histogram=self.histogram.merge(other.histogram),
            bucket_minimum=np.minimum(self.bucket_minimum, other.bucket_minimum) if separate else _no_floats(),
            bucket_maximum=np.maximum(self.bucket_maximum, other.bucket_maximum) if separate else _no_floats(),
        )

    def clamped(self, entry: TensorEntry, low: float, high: float) -> TensorStatistics:
        """Return the statistics of the same values clamped to [low; high], exact, as those of the tensor `entry`.

        NaN and infinities stay what they are: what a clamp makes of them depends on the machine.
        """

        def bounded(values: Any) -> Any:
            # -0.0 and 0.0 are one number, and one of them is written.
            clipped = np.clip(values, np.float32(low), np.float32(high)) + np.float32(0)
            return np.where(np.isfinite(values), clipped, values).astype(np.float32)

        histogram = self.histogram.clamped(low, high)
        ends = bounded(np.array([self.minimum, self.maximum], np.float32)) if self.finite else np.zeros(2, np.float32)
        return replace(
            self,
            **described(entry),
            zeros=histogram.count_between(0, 0),
            minimum=float(ends[0]),
            maximum=float(ends[1]),
            channel_minimum=bounded(self.channel_minimum),
            channel_maximum=bounded(self.channel_maximum),
            histogram=histogram,
            bucket_minimum=bounded(self.bucket_minimum),
            bucket_maximum=bounded(self.bucket_maximum),
        )


def _are_ranges(low: Floats, high: Floats) -> bool:
    """Return whether each pair is a finite range, or (+inf, -inf) for no values."""
    unseen = np.isposinf(low) & np.isneginf(high)
    return bool((unseen | (np.isfinite(low) & np.isfinite(high) & (low <= high))).all())


def described(entry: TensorEntry) -> dict[str, Any]:
    """Return what statistics take over from the model's table."""
    names = ("id", "source_name", "kind", "op", "layer", "shape", "dtype")
    return {name: getattr(entry, name) for name in names}


def constant_statistics(
    entry: TensorEntry, values: npt.NDArray[np.floating], channel_axis: int | None = None
) -> TensorStatistics:
    """Return the statistics of a constant's values, which may hold infinities (an unbounded clip, say)."""
    with np.errstate(over="ignore"):  # a float64 beyond float32 counts as infinite
        single = values.astype(np.float32, copy=False)
    is_finite = np.isfinite(single)
    finite, low, high = single, single, single
    if not is_finite.all():
        finite = single[is_finite]
        low, high = np.where(is_finite, single, np.inf), np.where(is_finite, single, -np.inf)
    histogram = Histogram.of(finite)
    axes = tuple(axis for axis in range(single.ndim) if axis != channel_axis)
    none = np.zeros(0, np.float32)
    return TensorStatistics(
        **described(entry),
        count=single.size,
        zeros=histogram.count_between(0, 0),
        non_finite=single.size - finite.size,
        first_non_finite=None,
        minimum=float(finite.min()) + 0.0 if finite.size else 0.0,
        maximum=float(finite.max()) + 0.0 if finite.size else 0.0,
        channel_axis=channel_axis,
        channel_minimum=none if channel_axis is None else low.min(axis=axes, initial=np.inf).astype(np.float32) + np.float32(0),
        channel_maximum=none if channel_axis is None else high.max(axis=axes, initial=-np.inf).astype(np.float32) + np.float32(0),
        histogram=histogram,
    )
