"""Entry point of `octavo`: builds the parser, calls one command, turns every error into one line and an exit code.

Exit codes: 0 done, 1 failed, 2 bad usage (argparse's and UsageError), 130 interrupted. It computes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from octavo_parser import base_parser

from ..errors import OctavoError, OctavoWarning, printable
from ..runtime.native_stderr import native_stderr_closed
from . import (
    bench,
    causes,
    compile,
    conformance,
    demo,
    evaluate,
    explain,
    passes,
    profile,
    quantize,
    report,
    run,
    search,
    trace,
    tune,
)
from .sources import UsageError

COMMANDS = (
    demo,
    profile,
    quantize,
    compile,
    tune,
    run,
    bench,
    evaluate,
    explain,
    causes,
    search,
    conformance,
    trace,
    passes,
    report,
)
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
DEBUG = "OCTAVO_DEBUG"


def build_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of the command that the words begin with, or of all; each sets `call`, which returns the exit code."""
    parser, commands = base_parser()
    # To make the parsers of all takes longer than many a command.
    named = [command for command in COMMANDS if command.__name__.rpartition(".")[2] in words[:1]]
    for command in named or COMMANDS:
        command.add_to(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; `--help`, `--version` and bad usage leave through SystemExit."""
    words = list(sys.argv[1:] if argv is None else argv)
    args = build_parser(words).parse_args(words)
    debug = bool(os.environ.get(DEBUG))
    try:
        if debug:
            return args.call(args)
        with native_stderr_closed(), warnings.catch_warnings(), contextlib.redirect_stdout(_Printable(sys.stdout)):
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", OctavoWarning)
            warnings.showwarning = lambda message, *_, **__: _report(f"warning: {message}")
            return args.call(args)
    except KeyboardInterrupt:
        _report("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, say) left; nothing may be written to it while Python shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except UsageError as error:
        _report(f"error: {error}")
        return EXIT_USAGE
    except Exception as error:
        if debug:
            traceback.print_exc()
        _report(f"error: {_describe(error)}")
        return EXIT_FAILED


class _Printable:
    """A stream of text that gets control characters of names escaped; everything else is the stream's own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def flush(self) -> None:
        """Write what is kept back."""
        self._stream.flush()

    def write(self, text: str) -> int:
        """Write a text."""
        return self._stream.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        """Return what the stream has."""
        return getattr(self._stream, name)


def _describe(error: Exception) -> str:
    if isinstance(error, OctavoError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    lines = [line for line in str(error).splitlines() if line.strip()]
    what = f"{type(error).__name__}: {lines[-1].strip()[:300] if lines else 'no message'}"
    return f"unexpected {what}; this is a bug in Octavo: please report it with the traceback that {DEBUG}=1 shows"


def _report(message: str) -> None:
    print(f"octavo: {printable(' '.join(message.split()))}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
