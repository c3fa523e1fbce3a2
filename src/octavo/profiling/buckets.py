"""Buckets of samples: each sample falls into one of a few by what it holds, wherever and whenever it is seen.

A profile keeps the range of each tensor for each bucket: how a range came about over the samples, in memory that does not grow
with them, and exactly alike however they are split or ordered. It knows no tensor and keeps no statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

BUCKETS = 32
"""Enough to halve the samples five times; two floats of each tensor are kept for each."""

_MAX_WORDS = 8192
_BITS = BUCKETS.bit_length() - 1
_MASK = (1 << 64) - 1
# Of SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014): its increment and its finalizer.
_GAMMA = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class SampleBuckets:
    """Tells the bucket of a sample."""

    def __init__(self) -> None:
        # Odd, and another for each place: samples that hold the same values in another order are separate.
        self._weights = (np.arange(1, _MAX_WORDS + 1, dtype=np.uint64) * np.uint64(_GAMMA)) | np.uint64(1)

    def of(self, arrays: Sequence[npt.NDArray[Any]]) -> int:
        """Return the bucket, in [0; BUCKETS - 1], of one sample: contiguous arrays."""
        state = 0
        for array in arrays:
            content = array.reshape(-1).view(np.uint8)
            full = content.size // 8 * 8
            words = _spread(content[:full].view(np.uint64))
            summed = int(np.dot(words, self._weights[: words.size])) if words.size else 0
            tail = int.from_bytes(content[full:].tobytes(), "little")
            state = _mixed(state + summed + tail * _GAMMA + _GAMMA)
        return state >> (64 - _BITS)


def _spread(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return at most _MAX_WORDS words, evenly spaced: samples that differ elsewhere alone share a bucket, which is no harm."""
    step = -(-words.size // _MAX_WORDS)
    return words[:: step | 1] if step > 1 else words


def _mixed(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)
