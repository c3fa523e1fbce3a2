"""The front door of `octavo`: `--help` and unknown commands are answered here, at once.

It stands outside the package because the commands import TVM: seconds, which nobody who asks what there is should wait. It
imports the standard library only, knows the commands by name, reads what `octavo COMMAND --help` prints from
`octavo/cli/help.json` (which a test keeps equal to the parsers), and hands commands that are to be run to `octavo.cli`.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from octavo_parser import SUMMARIES, base_parser

_EXIT_INTERRUPTED = 130
_HELP = frozenset({"-h", "--help"})
_TEXTS = Path(__file__).with_name("octavo") / "cli" / "help.json"


def print_help(words: Sequence[str]) -> bool:
    """Print the help of the command that the words begin with; False where it is not to be had, and the parser is to say it."""
    name = " ".join(words[:2]) if " ".join(words[:2]) in SUMMARIES else words[0]
    try:
        text = json.loads(_TEXTS.read_text(encoding="utf-8"))["commands"][name]
    except (OSError, ValueError, KeyError):
        return False
    print(text, end="")
    return True


def _leave_pytorch_out() -> None:
    """Let TVM import no PyTorch, of which no command takes a program. Not to be found is how a module says that it is not."""
    sys.modules.setdefault("torch", None)  # pyright: ignore[reportArgumentType]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; `--help`, `--version` and bad usage leave through SystemExit."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] not in SUMMARIES:
        parser, commands = base_parser()
        for name, summary in SUMMARIES.items():
            if " " not in name:
                commands.add_parser(name, help=summary)
        if "--version" in words:
            _leave_pytorch_out()
        parser.parse_args(words)
    if not _HELP.isdisjoint(words[: words.index("--")] if "--" in words else words) and print_help(words):
        return 0
    _leave_pytorch_out()
    # To look for garbage among what imports make, which all stays, takes an eighth of the time until a command begins.
    gc.disable()
    try:
        from octavo.cli.main import main as run
    except KeyboardInterrupt:
        print("octavo: interrupted", file=sys.stderr)
        return _EXIT_INTERRUPTED

    gc.freeze()
    gc.enable()
    return run(words)


if __name__ == "__main__":
    sys.exit(main())
