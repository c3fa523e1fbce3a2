"""Which samples a profile keeps: of all that were seen those with the smallest keys, whoever saw them and in whatever order.

A sample's key is a hash of what its inputs hold, so the few that are kept are as good as drawn by chance, and merging is exact:
the smallest keys of all are among the smallest of each part (a bottom-k sketch; Cohen and Kaplan, Summarizing Data using Bottom-k
Sketches, 2007). A sample is what one run of the model takes. Nothing here knows a model or a file.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ProfileError, brief
from .array_text import little_endian
from .statistics import MAX_COUNT

Sample = tuple[npt.NDArray[Any], ...]

KEEP_SAMPLES = 64
"""Kept unless asked otherwise: enough for the mean of a layer's error, and soon run again."""

MAX_BYTES = 32 * 2**20
"""Of all kept samples together, one at least: the file, 4/3 of it, stays one that is read in a second."""

_KEY_BYTES = 16


def check_keep(keep: int) -> None:
    """Raise ProfileError unless `keep` is a number of samples."""
    if isinstance(keep, bool) or not isinstance(keep, int) or not 0 <= keep <= MAX_COUNT:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ProfileError(f"keep_samples must be a number of samples, 0 or more, got {keep!r}")


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

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Those kept, read-only arrays, in the order of their keys."""
        return tuple(self._samples)

    def offer(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Keep a copy of one sample's inputs if its key is among the smallest; one with NaN or infinity never is."""
        if not self._keep:
            return
        key = _key(arrays)
        place = bisect_left(self._keys, key)
        most = _most(self._keep, arrays)
        if place >= most or self._keys[place : place + 1] == [key] or not _is_finite(arrays):
            return
        self._keys.insert(place, key)
        self._samples.insert(place, tuple(map(_copy, arrays)))
        del self._keys[most:], self._samples[most:]


def smallest(keep: int, *parts: Sequence[Sample]) -> tuple[Sample, ...]:
    """Return what is kept of the union of `parts`; ValueError if their samples are not inputs of one model."""
    samples = [sample for part in parts for sample in part]
    _check_alike(samples)
    kept = KeptSamples(keep)
    for sample in samples:
        kept.offer(sample)
    return kept.samples


def check_kept(keep: int, samples: Sequence[Sample]) -> None:
    """Raise ValueError unless `samples` could have been kept where `keep` were asked for."""
    _check_alike(samples)
    if samples and len(samples) > _most(keep, samples[0]):
        raise ValueError(f"{len(samples)} samples, at most {_most(keep, samples[0])} may be kept")
    if not all(map(_is_finite, samples)):
        raise ValueError("a value is NaN or infinite")
    keys = list(map(_key, samples))
    if keys != sorted(set(keys)):
        raise ValueError("samples must stand in the order of their keys, each once")


def _most(keep: int, arrays: Sequence[npt.NDArray[Any]]) -> int:
    size = sum(array.nbytes for array in arrays)
    return min(keep, max(1, MAX_BYTES // max(1, size)))


def _key(arrays: Sequence[npt.NDArray[Any]]) -> bytes:
    """Return the key of a sample: a hash of dtypes, shapes and bytes, the same on any machine."""
    digest = hashlib.blake2b(repr(_signature(arrays)).encode(), digest_size=_KEY_BYTES)
    for array in arrays:
        digest.update(little_endian(array).data)
    return digest.digest()


def _signature(arrays: Sequence[npt.NDArray[Any]]) -> list[tuple[str, tuple[int, ...]]]:
    return [(str(array.dtype), array.shape) for array in arrays]


def _check_alike(samples: Sequence[Sample]) -> None:
    for sample in samples:
        if _signature(sample) != _signature(samples[0]):
            both = [brief(_signature(one)) for one in (samples[0], sample)]
            raise ValueError(f"kept samples of different shapes or dtypes: {both[0]} and {both[1]}")


def _is_finite(arrays: Sequence[npt.NDArray[Any]]) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays)


def _copy(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    copy = array.copy()
    copy.flags.writeable = False
    return copy
