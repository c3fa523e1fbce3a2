"""TensorStatistics: what a profile keeps of one tensor. Everything in it merges exactly; nothing in it depends on order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..identity import TensorEntry, TensorId, TensorKind
from ..numerics.histogram import Histogram, bin_of, exponent_of

MAX_COUNT = 2**53 - 1
"""Largest count, the largest integer that every JSON reader keeps exact."""

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TensorStatistics:
    """Statistics of one tensor over all samples (of a constant: over its values, once).

    Parameters
    ----------
    id, source_name, kind, op, shape, dtype
        As in the model's TensorTable.
    count
        Values seen.
    zeros
        Values equal to 0.
    non_finite
        Values that are NaN or infinite; only constants may hold any.
    minimum, maximum
        Of the finite values, exact float32; 0.0 where there are none.
    channel_axis
        Axis of the channels, or None where none is known.
    channel_minimum, channel_maximum
        float32 (channels,); (0,) without an axis.
    histogram
        Of the finite values.
    """

    id: TensorId
    source_name: str
    kind: TensorKind
    op: str
    shape: tuple[int | str, ...]
    dtype: str
    count: int
    zeros: int
    non_finite: int
    minimum: float
    maximum: float
    channel_axis: int | None
    channel_minimum: Floats
    channel_maximum: Floats
    histogram: Histogram

    def __post_init__(self) -> None:
        """Check that the fields agree with each other; ValueError names the one that doesn't."""
        finite = self.count - self.non_finite
        if not 0 <= self.count <= MAX_COUNT:
            raise ValueError(f"count must lie in [0; {MAX_COUNT}], got {self.count}")
        if not 0 <= self.non_finite <= self.count or not 0 <= self.zeros <= finite:
            raise ValueError(f"zeros {self.zeros} and non_finite {self.non_finite} do not fit count {self.count}")
        if self.histogram.total != finite:
            raise ValueError(f"histogram counts {self.histogram.total} values, expected {finite}")
        if not (np.isfinite(self.minimum) and np.isfinite(self.maximum) and self.minimum <= self.maximum):
            raise ValueError(f"min {self.minimum} and max {self.maximum} must be finite and in order")
        if finite:
            self._check_range()
        self._check_channels()

    def _check_range(self) -> None:
        exponent = exponent_of(max(abs(self.minimum), abs(self.maximum)))
        if self.histogram.exponent != exponent:
            raise ValueError(f"histogram exponent {self.histogram.exponent} does not fit min and max, expected {exponent}")
        used = np.flatnonzero(self.histogram.counts)
        ends = bin_of(np.array([self.minimum, self.maximum], np.float32), exponent)
        if not np.array_equal(ends, used[[0, -1]]):
            raise ValueError(f"histogram spans bins [{used[0]}; {used[-1]}], min and max lie in {ends.tolist()}")

    def _check_channels(self) -> None:
        low, high = self.channel_minimum, self.channel_maximum
        if low.shape != high.shape or low.ndim != 1 or (self.channel_axis is None) != (low.size == 0):
            raise ValueError("channel_min and channel_max must be lists of one length, empty where there is no channel_axis")
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
            raise ValueError("channel_min and channel_max must be finite and in order")
        if low.size and (float(low.min()) != self.minimum or float(high.max()) != self.maximum):
            raise ValueError("channel_min and channel_max do not fit min and max")

    def merge(self, other: TensorStatistics) -> TensorStatistics:
        """Return the statistics of both sets of values; of a constant, its own. ValueError if they describe different tensors."""
        for field in ("id", "source_name", "kind", "op", "shape", "dtype", "channel_axis"):
            if getattr(self, field) != getattr(other, field):
                raise ValueError(f"{self.id}: {field} {getattr(self, field)!r} and {getattr(other, field)!r} differ")
        if self.channel_minimum.shape != other.channel_minimum.shape:
            raise ValueError(f"{self.id}: {self.channel_minimum.size} and {other.channel_minimum.size} channels")
        if self.kind == "constant":
            return self
        return replace(
            self,
            count=self.count + other.count,
            zeros=self.zeros + other.zeros,
            non_finite=self.non_finite + other.non_finite,
            minimum=min(self.minimum, other.minimum),
            maximum=max(self.maximum, other.maximum),
            channel_minimum=np.minimum(self.channel_minimum, other.channel_minimum),
            channel_maximum=np.maximum(self.channel_maximum, other.channel_maximum),
            histogram=self.histogram.merge(other.histogram),
        )


def constant_statistics(entry: TensorEntry, values: npt.NDArray[np.floating]) -> TensorStatistics:
    """Return the statistics of a constant's values, which may hold infinities (an unbounded clip, say)."""
    with np.errstate(over="ignore"):  # a float64 beyond float32 counts as infinite
        single = values.astype(np.float32)
    finite = single[np.isfinite(single)]
    return TensorStatistics(
        id=entry.id,
        source_name=entry.source_name,
        kind=entry.kind,
        op=entry.op,
        shape=entry.shape,
        dtype=entry.dtype,
        count=single.size,
        zeros=int((finite == 0).sum()),
        non_finite=single.size - finite.size,
        minimum=float(finite.min()) + 0.0 if finite.size else 0.0,
        maximum=float(finite.max()) + 0.0 if finite.size else 0.0,
        channel_axis=None,
        channel_minimum=np.zeros(0, np.float32),
        channel_maximum=np.zeros(0, np.float32),
        histogram=Histogram.of(finite),
    )
