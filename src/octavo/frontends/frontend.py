"""Driving TVM's frontends: silence around them, one line of what they raise, and errors that name the op under conversion.

Knows no source format; hides no exception.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Callable, Generator
from typing import Any

from ..errors import OctavoError, UnsupportedOpError

_TVM_INTEGER = re.compile(r"\bT\.int\d+\((-?\d+)\)")
"""How TVM prints a number."""
_TVM_OP = re.compile(r"""\bir\.Op\(.*? name="(?:relax\.)?([\w.]+)".*? support_level=\d+\)""")
"""How TVM prints an op: with all that it knows of it."""


class RejectedOpError(Exception):
    """A form of an op that cannot be imported, with the reason; the frontend adds the op, its tensor and the file."""


class UnknownOpError(UnsupportedOpError):
    """An op or a dtype that nothing converts, whatever the shapes are."""


class NewlyKnownError(Exception):
    """The graph says more of its open sizes than was known when its conversion began: start it anew."""


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
    return _TVM_OP.sub(r"\1", _TVM_INTEGER.sub(r"\1", wanted[-1]))[:300] if wanted else type(error).__name__


@contextlib.contextmanager
def conversion_errors(describe: Callable[[], str]) -> Generator[None]:
    """Turn whatever a converter raises into an UnsupportedOpError that opens with what `describe` returns."""
    try:
        yield
    except RejectedOpError as error:
        raise UnsupportedOpError(f"{describe()}: {error}") from None
    except (OctavoError, NewlyKnownError):
        raise
    except Exception as error:
        raise UnsupportedOpError(f"{describe()} cannot be imported: {reason(error)}") from error
