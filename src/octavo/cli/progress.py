"""Progress on standard error, only where a person watches it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tqdm import tqdm


class Advance(Protocol):
    """Reports `count` more units of work as done."""

    def __call__(self, count: int, /) -> object:
        """Advance the bar."""
        ...


@contextmanager
def progress_bar(title: str, total: int, unit: str) -> Iterator[Advance]:
    """Show a bar over `total` units while the context lasts; none if standard error is not a terminal."""
    with tqdm(total=total, desc=title, unit=unit, file=sys.stderr, disable=not sys.stderr.isatty(), leave=False) as bar:
        yield bar.update
