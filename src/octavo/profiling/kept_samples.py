"""Which samples a profile keeps: of all that were seen those with the smallest keys, whoever saw them and in whatever order.

A sample's key is a hash of what its inputs hold, so the few that are kept are as good as drawn by chance, and merging is exact:
the smallest keys of all are among the smallest of each part (a bottom-k sketch; Cohen and Kaplan, Summarizing Data using Bottom-k
Sketches, 2007). A sample is what one run of the model takes; what the model gave is kept beside it, where that is not too much.
Nothing here knows a model or a file.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ProfileError, brief
from .coded_array import little_endian
from .statistics import MAX_COUNT

Sample = tuple[npt.NDArray[Any], ...]

KEEP_SAMPLES = 64
"""Kept unless asked otherwise: two thirds say how to correct a layer, and by the others plans are compared, soon run again."""

MAX_BYTES = 32 * 2**20
"""Of all kept samples together, one at least, and of their results together: their file stays one that is soon read."""

_KEY_BYTES = 16


def check_keep(keep: int) -> None:
    """Raise ProfileError unless `keep` is a number of samples."""
    if isinstance(keep, bool) or not isinstance(keep, int) or not 0 <= keep <= MAX_COUNT:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ProfileError(f"keep_samples must be a number of samples, 0 or more, got {keep!r}")


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Samples, and what the model gave for each of them; no results where that is not known, or too much."""

    samples: tuple[Sample, ...] = ()
    results: tuple[Sample, ...] = ()


class KeptSamples:
    """The samples with the smallest keys, of all that were offered; memory does not grow with those.

    Parameters
    ----------
    keep
        How many at most; MAX_BYTES may allow fewer.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._keys: list[bytes] = []
        self._samples: list[Sample] = []
        self._results: list[Sample | None] = []

    @property
    def kept(self) -> Kept:
        """Those kept, read-only arrays, in the order of their keys."""
        results = [each for each in self._results if each is not None]
        return Kept(tuple(self._samples), tuple(results) if len(results) == len(self._samples) else ())

    def offer(
        self,
        arrays: Sequence[npt.NDArray[Any]],
        results: Callable[[], Sequence[npt.NDArray[Any]]] | None = None,
        key: Callable[[], bytes] | None = None,
    ) -> None:
        """Keep a copy of one sample's inputs, and its results, if its key is among the smallest.

        A sample with NaN or infinity never is. `key` gives that of the sample, where someone knows it already.
        """
        if not self._keep:
            return
        own = key_of(arrays) if key is None else key()
        place = bisect_left(self._keys, own)
        if place >= self._keep or self._keys[place : place + 1] == [own] or not _is_finite(arrays):
            return
        if place and _bytes_of(self._samples[:place]) + _bytes_of([arrays]) > MAX_BYTES:
            return
        self._keys.insert(place, own)
        self._samples.insert(place, tuple(map(_copy, arrays)))
        given = None if results is None else results()
        has_room = given is not None and _has_room(_most(self._keep, arrays), given)
        self._results.insert(place, tuple(map(_copy, given)) if given is not None and has_room else None)
        most = _fitting(self._samples, self._keep)
        del self._keys[most:], self._samples[most:], self._results[most:]


def smallest(keep: int, *parts: Kept) -> Kept:
    """Return what is kept of the union of `parts`; ValueError if their samples are not inputs of one model.

    Where a part has no results the union has none: which parts its samples are from must not count.
    """
    _check_alike([sample for part in parts for sample in part.samples])
    _check_alike([sample for part in parts for sample in part.results])
    kept, have_results = KeptSamples(keep), all(part.results or not part.samples for part in parts)
    for part in parts:
        for place, sample in enumerate(part.samples):
            kept.offer(sample, partial(part.results.__getitem__, place) if have_results else None)
    return kept.kept


def check_kept(keep: int, kept: Kept) -> None:
    """Raise ValueError unless this could have been kept where `keep` samples were asked for."""
    samples, results = kept.samples, kept.results
    _check_alike(samples)
    _check_alike(results)
    if len(samples) > _fitting(samples, keep):
        raise ValueError(f"{len(samples)} samples, at most {_fitting(samples, keep)} may be kept")
    if not all(map(_is_finite, samples)):
        raise ValueError("a value is NaN or infinite")
    keys = list(map(key_of, samples))
    if keys != sorted(set(keys)):
        raise ValueError("samples must stand in the order of their keys, each once")
    if results and len(results) != len(samples):
        raise ValueError(f"{len(results)} samples have results, all {len(samples)} or none must")
    if not all(_has_room(_most(len(samples), sample), own) for sample, own in zip(samples, results, strict=False)):
        raise ValueError(f"results take more than {MAX_BYTES} bytes")


def _fitting(samples: Sequence[Sample], keep: int) -> int:
    """Return how many of some samples, in the order of their keys, may be kept: as many as have room, one at least."""
    total = 0
    for place, sample in enumerate(samples[:keep]):
        total += _bytes_of([sample])
        if place and total > MAX_BYTES:
            return place
    return min(len(samples), keep)


def _bytes_of(samples: Sequence[Sequence[npt.NDArray[Any]]]) -> int:
    return sum(array.nbytes for sample in samples for array in sample)


def _most(keep: int, arrays: Sequence[npt.NDArray[Any]]) -> int:
    size = sum(array.nbytes for array in arrays)
    return min(keep, max(1, MAX_BYTES // max(1, size)))


def _has_room(most: int, results: Sequence[npt.NDArray[Any]]) -> bool:
    return most * sum(array.nbytes for array in results) <= MAX_BYTES


def key_of(arrays: Sequence[npt.NDArray[Any]]) -> bytes:
    """Return the key of a sample: a hash of dtypes, shapes and bytes, the same on any machine."""
    digest = hashlib.blake2b(repr(_signature(arrays)).encode(), digest_size=_KEY_BYTES)
    for array in arrays:
        digest.update(little_endian(array).data)
    return digest.digest()


def _signature(arrays: Sequence[npt.NDArray[Any]]) -> list[tuple[str, tuple[int, ...]]]:
    return [(str(array.dtype), array.shape) for array in arrays]


def _check_alike(samples: Sequence[Sample]) -> None:
    """ValueError unless samples can be of one model, whose sizes may be open."""
    for sample in samples:
        kinds = [[(dtype, len(shape)) for dtype, shape in _signature(one)] for one in (samples[0], sample)]
        if kinds[0] != kinds[1]:
            both = [brief(_signature(one)) for one in (samples[0], sample)]
            raise ValueError(f"kept samples of different ranks or dtypes: {both[0]} and {both[1]}")


def _is_finite(arrays: Sequence[npt.NDArray[Any]]) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays)


def _copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    copy = array.copy()
    copy.flags.writeable = False
    return copy
