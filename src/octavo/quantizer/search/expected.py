"""What the steps of a search are expected to take, by what was measured. It decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from .result import Change

_CORRECTING, _REMEDYING = 2.0, 6.0
"""So many times as long as plain quantization takes one that corrects weights and biases, and one with remedies for `min_sqnr`:
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
