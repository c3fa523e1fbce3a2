"""Ctrl-C while a search runs: it ends the search, not the program, and never before there is something to return.

Python's own handler raises KeyboardInterrupt wherever the program is. Below TVM's C++ code that may become another error, or be
caught as one of code generation; so it is noted, too, that it was asked for.
"""

from __future__ import annotations

import signal
import threading


class Interruption:
    """A context in which SIGINT raises KeyboardInterrupt once `ready`, and is noted in `asked` before; a second raises anyhow.

    In threads other than the main one, which get no signals, it does nothing.
    """

    ready = asked = False

    def __enter__(self) -> Interruption:
        """Take the signal."""
        is_main = threading.current_thread() is threading.main_thread()
        self._before = signal.signal(signal.SIGINT, self._handle) if is_main else None
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signal back to whoever had it."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise KeyboardInterrupt if it was asked for: what lies between may have caught it."""
        if self.asked:
            raise KeyboardInterrupt

    def _handle(self, *_: object) -> None:
        raises, self.asked = self.ready or self.asked, True
        if raises:
            raise KeyboardInterrupt
