"""Ctrl-C while a search runs: it ends the search, not the program, and never before there is something to return.

Python's own handler raises KeyboardInterrupt wherever the program is. Below TVM's C++ code that may become another error, or be
caught as one of code generation; so it is noted, too, that it was asked for.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interruption:
    """A context in which SIGINT raises KeyboardInterrupt once `ready`, and is noted in `asked` before; a second raises anyhow.

    In threads other than the main one, which get no signals, it does nothing.
    """

    def __init__(self) -> None:
        self.ready = False
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Interruption:
        """Take the signal."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signal back to whoever had it."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise KeyboardInterrupt if it was asked for: what lies between may have caught it."""
        if self.asked:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.ready or self.asked:
            self.asked = True
            raise KeyboardInterrupt
        self.asked = True
