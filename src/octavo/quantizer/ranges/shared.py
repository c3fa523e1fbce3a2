"""Tensors that share one scale and zero point because ops move values between them: groups of them. Chooses no range.

The target says of an op whether its inputs and its output share parameters (`OpSupport.same_params`). An op of one input that
only moves values makes no new one: its output takes the input's range. Of any other (a concat) the range is the hull of all
inputs and the output. Groups that have a member in common are one group, so whatever makes a member quantizes it with the range
of all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

Range = tuple[float, float]
Key = TypeVar("Key", bound=Hashable)


class SharedRanges(Generic[Key]):
    """Groups of tensors.

    Parameters
    ----------
    range_of
        Returns a tensor's own range, or None where it has none.
    """

    def __init__(self, range_of: Callable[[Key], Range | None]) -> None:
        self._range_of = range_of
        self._group: dict[Key, set[Key]] = {}
        self._followers: set[Key] = set()
        self._ranges: dict[Key, Range] = {}

    def share(self, inputs: Iterable[Key], output: Key, *, moves: bool = True) -> None:
        """Put what an op reads and makes into one group; `moves` says that it makes no value that its inputs do not span."""
        keys = list(dict.fromkeys(inputs))
        if moves and len(keys) == 1:
            self._followers.add(output)
        joined = set[Key]()
        for key in (*keys, output):
            joined |= self._group.get(key, {key})
        self._group.update(dict.fromkeys(joined, joined))

    def range_of(self, key: Key) -> Range:
        """Return the range that a tensor shares with its group, or its own."""
        if key not in self._ranges:
            group = self._group.get(key, {key})
            ranges = [self._range_of(member) for member in group if member not in self._followers]
            lows, highs = zip(*(found for found in ranges if found is not None), strict=True)
            self._ranges.update(dict.fromkeys(group, (min(lows), max(highs))))
        return self._ranges[key]
