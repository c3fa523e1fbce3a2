"""The time that a search has, and what its steps should take: none begins that takes longer than is left. It measures nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from .result import Change

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


_CORRECTING, _REMEDYING = 2.0, 6.0
"""So many times as long as plain quantization takes one that corrects weights and biases, and one that keeps `min_sqnr`:
what is expected before one was made."""


@dataclass(kw_only=True, slots=True, eq=False)
class Expected:
    """Seconds.

    Parameters
    ----------
    quantizing
        What plain quantization took.
    measuring
        What compiling and measuring the float model took.
    """

    quantizing: float
    measuring: float = 0.0
    _known: dict[tuple[bool, bool], float] = field(default_factory=dict[tuple[bool, bool], float])

    def note(self, change: Change, seconds: float) -> None:
        """Note what a candidate took."""
        kind = _kind(change)
        self._known[kind] = max(self._known.get(kind, 0.0), seconds)

    def candidate(self, change: Change, *, is_made: bool = False) -> float:
        """Return what a candidate takes, quantized already or not: as the longest of its kind, or by what is known of others."""
        if is_made:
            return self.measuring
        found = self._known.get(_kind(change))
        if found is not None:
            return found
        factor = _REMEDYING if change.keeps_min_sqnr else _CORRECTING if change.corrects else 1.0
        return max(factor * self.quantizing + self.measuring, *self._known.values(), 0.0)


def _kind(change: Change) -> tuple[bool, bool]:
    return change.corrects, change.keeps_min_sqnr
