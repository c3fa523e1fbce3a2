"""What was found last, with what decided it. It knows nothing of what is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

FoundT = TypeVar("FoundT")


@dataclass(slots=True, eq=False)
class Last(Generic[FoundT]):
    """What was found last, and what decided it: to find it again takes most of the time. It changes no result.

    Parameters
    ----------
    room
        For how many: two models that are compared on several folds are planned in turn.
    """

    room: int = 1
    _known: list[tuple[Any, FoundT]] = field(default_factory=list["tuple[Any, FoundT]"])

    @property
    def value(self) -> FoundT | None:
        """What was found last."""
        return self._known[-1][1] if self._known else None

    def find(self, decided_by: object, find: Callable[[], FoundT]) -> FoundT:
        """Return what was found for the same, else what is found now."""
        place = next((place for place, (known, _) in enumerate(self._known) if known == decided_by), None)
        found = (decided_by, find()) if place is None else self._known.pop(place)
        self._known = [*self._known, found][-self.room :]
        return found[1]

    def forget(self, but: object) -> None:
        """Let go of what others decided."""
        self._known = [found for found in self._known if found[0] == but]
