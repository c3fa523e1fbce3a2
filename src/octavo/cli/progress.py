"""Progress on standard error, only where a person watches it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from tqdm import tqdm


@contextmanager
def progress_bar(title: str, total: int | None, unit: str) -> Generator[Callable[[int], None], None, None]:
    """Show a bar while the context lasts, none if standard error is not a terminal; yields a function that advances it.

    Parameters
    ----------
    total
        Units of work in all; None if nobody knows.
    unit
        What is counted, singular.
    """
    with tqdm(total=total, desc=title, unit=unit, file=sys.stderr, disable=not sys.stderr.isatty(), leave=False) as bar:

        def advance(count: int) -> None:
            bar.update(count)

        yield advance
