"""Halving: which number of float activations is tried next, as a value; where a trial leads can be asked before it is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_PRECISION = 0.05
"""Of the number of float activations, as a share of it: where halving ends."""


@dataclass(frozen=True, slots=True)
class Halving:
    """Where a search for the smallest number that is enough stands: more than `low`, `high` at most, `count` is tried next."""

    low: int
    high: int
    count: int
    found: bool = False
    """Whether `high` was tried, and enough."""

    @property
    def is_over(self) -> bool:
        """Whether `high` is near enough."""
        return self.high - self.low <= max(1, int(_PRECISION * self.high))

    def after(self, is_enough: bool) -> Halving:
        """Return where it stands once `count` was tried."""
        low, high = (self.low, self.count) if is_enough else (self.count, self.high)
        middle, found = (low + high) // 2, self.found or is_enough
        return Halving(low, high, middle if found else min(2 * low, middle), found)

    def ahead(self) -> Iterator[int]:
        """Yield what is tried next, then what may be after that, and so on: whatever the outcomes will be."""
        stages = [self]
        while stages := [each for each in stages if not each.is_over]:
            yield from dict.fromkeys(each.count for each in stages)
            stages = [each.after(is_enough) for each in stages for is_enough in (False, True)]
