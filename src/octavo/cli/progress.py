"""Progress on standard error, only where a person watches it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

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


@contextmanager
def progress_steps(title: str, logger: str) -> Generator[None, None, None]:
    """Show a bar that names the step which is tried, none if standard error is not a terminal.

    Parameters
    ----------
    logger
        Whose records, of level INFO, are the steps.
    """
    with tqdm(total=None, desc=title, unit="step", file=sys.stderr, disable=not sys.stderr.isatty(), leave=False) as bar:
        handler = _Steps(bar)
        source = logging.getLogger(logger)
        level = source.level
        source.addHandler(handler)
        source.setLevel(logging.INFO)
        try:
            yield
        finally:
            source.removeHandler(handler)
            source.setLevel(level)


class _Steps(logging.Handler):
    def __init__(self, bar: Any) -> None:
        super().__init__(logging.INFO)
        self._bar = bar

    def emit(self, record: logging.LogRecord) -> None:
        """Name the step in the bar."""
        self._bar.set_postfix_str(record.getMessage())
        self._bar.update(1)
