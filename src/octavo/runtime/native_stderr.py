"""Keeps what C++ libraries write to file descriptor 2 off the terminal, where it would break progress bars and error lines.

Python's own sys.stderr goes on working meanwhile. It fuses nothing that matters: failures come back as exceptions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager

STDERR = 2


@contextmanager
def native_stderr_closed() -> Generator[None, None, None]:
    """Send file descriptor 2 to nowhere while the context lasts; sys.stderr, if that is what it wrote to, moves aside."""
    stream = sys.stderr
    saved = os.dup(STDERR)
    moved = os.fdopen(os.dup(saved), "w", buffering=1, errors="backslashreplace") if _writes_to_stderr(stream) else None
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        if moved is not None:
            stream.flush()
            sys.stderr = moved
        os.dup2(nowhere, STDERR)
        yield
    finally:
        os.dup2(saved, STDERR)
        sys.stderr = stream
        if moved is not None:
            moved.close()
        os.close(nowhere)
        os.close(saved)


def _writes_to_stderr(stream: object) -> bool:
    try:
        return getattr(stream, "fileno")() == STDERR  # noqa: B009 - a stream in a test may have no fileno
    except (AttributeError, OSError, ValueError):
        return False
