"""Silence around TVM's frontends, which warn on every rename and print before they raise; one line of what they raise.

Hides no exception.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Generator
from typing import Any


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Keep warnings, log lines and Python's stdout and stderr from leaking while a frontend runs."""
    previous = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(previous)


def discard(builder: Any) -> None:
    """Close the block that an exception left open; the builder's destructor would print a warning about it from C++."""
    with contextlib.suppress(Exception):
        builder._end_block()


def reason(error: BaseException) -> str:
    """Return the one line of an exception that says what is wrong; TVM's may carry a C++ backtrace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    wanted = [line for line in lines if not line.startswith(("File ", "at ", "[", "#", "Traceback"))]
    return wanted[-1][:300] if wanted else type(error).__name__
