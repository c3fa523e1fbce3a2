"""Names of new variables: never one that a tensor of the source, or another variable, already has."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """Hands out unused variable names."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def take(self, *names: str) -> None:
        """Mark names as used."""
        self._taken.update(names)

    def fresh(self, wish: str) -> str:
        """Return `wish`, or `wish` with a number if it is taken, and mark it used."""
        name, number = wish, 1
        while name in self._taken:
            number += 1
            name = f"{wish}_{number}"
        self._taken.add(name)
        return name
