"""The time that a search has: what is expected to take longer than what is left is not begun. It measures no candidates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

Clock = Callable[[], float]
"""Returns seconds, from any moment on."""


@dataclass(kw_only=True, slots=True, eq=False)
class Budget:
    """What is left of a time, and what was left out for want of it.

    Parameters
    ----------
    clock
        Read before and after each step.
    seconds
        From now on; None for no limit.
    """

    clock: Clock
    seconds: float | None
    cut: list[str] = field(default_factory=list[str])
    """In words, in the order in which it was left out."""
    _begun: float = field(init=False)

    def __post_init__(self) -> None:
        """Begin."""
        self._begun = self.clock()

    @property
    def left(self) -> float:
        """Seconds that are left; less than 0 where they are over, inf without a limit."""
        return math.inf if self.seconds is None else self.seconds - (self.clock() - self._begun)

    def has(self, seconds: float) -> bool:
        """Return whether what takes so long may be begun."""
        return self.seconds is None or seconds < self.left

    def allows(self, seconds: float, otherwise: str) -> bool:
        """Return whether what takes so long may be begun; if not, note what is left out."""
        is_allowed = self.has(seconds)
        if not is_allowed and otherwise not in self.cut:
            self.cut.append(otherwise)
        return is_allowed
