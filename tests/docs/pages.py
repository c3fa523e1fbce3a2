"""Pages as programs: their blocks of Python and of commands in their order, and what the page says that they print."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.cli.main import main

DOCS = Path(__file__).resolve().parents[2] / "docs"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SECONDS = ("octavo bench", "octavo tune")
_QUICKER = {"octavo search": ["--candidates", "2"], "octavo bench": ["--threads", "1"]}
"""What is written after a command's own words, of which it takes the place. tests/cli/test_commands.py has two threads."""


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in _FENCE.findall(page.read_text(encoding="utf-8"))]


def run(page: Path, **given: Any) -> Iterator[tuple[str, str]]:
    """Run a page in the current folder, with names given; yield what it says a block prints, with what that block printed."""
    names: dict[str, Any] = {"__name__": "page", **given}
    printed = ""
    for block in blocks(page):
        if block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.text, str(page), "exec"), names)
            printed = out.getvalue()
        elif block.language == "bash":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                for line in block.text.splitlines():
                    command(line)
            printed = out.getvalue()
        elif block.language == "json":
            before, _, _ = page.read_text(encoding="utf-8").partition(block.text)
            name = re.search(r"`(\w+\.json)`", before.rsplit("\n\n", 2)[-2])
            assert name is not None, "the paragraph before JSON names its file"
            Path(name[1]).write_text(block.text, encoding="utf-8")
        elif block.language == "text":
            yield block.text, printed


def command(line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "octavo", f"{line}: what no test runs stands in a console block"
    short = ["--seconds", "0.05"] if line.startswith(_SECONDS) else []
    more = next((more for start, more in _QUICKER.items() if line.startswith(start)), [])
    with contextlib.redirect_stderr(io.StringIO()) as said:
        assert main([*words, *short, *more]) == 0, f"{line}: {said.getvalue()}"


def is_shown(shown: str, printed: str) -> bool:
    """Return whether each line that a page shows was printed, but for numbers and the width of columns."""
    lines = {_masked(line) for line in printed.splitlines()}
    return all(_masked(line) in lines for line in shown.splitlines() if line.strip())


def _masked(line: str) -> str:
    return re.sub(r"[\s|-]+", " ", re.sub(r"[-+]?\d[\d.,e]*", "#", line)).strip()
