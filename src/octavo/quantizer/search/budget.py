"""The time that a search has: nothing begins that takes longer than is left, by what it took before. It measures nothing."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field


@dataclass(kw_only=True, slots=True, eq=False)
class Budget:
    """What is left of a time, and what was left out for want of it.

    Parameters
    ----------
    seconds
        From now on; None for no limit.
    """

    seconds: float | None
    cut: list[str] = field(default_factory=list[str])
    """In words, in the order in which it was left out."""
    longest: float = 0.0
    """What a candidate took at most."""
    _begun: float = field(default_factory=lambda: time.monotonic())

    @property
    def deadline(self) -> float:
        """When it is over, by `time.monotonic`; inf without a limit."""
        return math.inf if self.seconds is None else self._begun + self.seconds

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._begun

    def has(self, seconds: float) -> bool:
        """Return whether what takes so long may be begun."""
        return time.monotonic() + seconds < self.deadline

    def note(self, begun: float) -> None:
        """Note that a candidate is done which was begun when so many seconds were spent."""
        self.longest = max(self.longest, self.spent - begun)
