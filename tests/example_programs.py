"""The programs of examples/ as they run from a command line, in this process: importing Octavo would be most of their time."""

from __future__ import annotations

import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@dataclass(frozen=True)
class Done:
    """What a run of a program left: its exit code, the text that a string as exit code is on standard error, and its output."""

    code: int
    out: str
    err: str


class Programs:
    """Runs programs of folders, each with the modules of its own folder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def run(self, program: Path, *words: object) -> Done:
        """Run a program with these words as its arguments."""
        self._capsys.readouterr()
        with self._monkeypatch.context() as patch:
            patch.syspath_prepend(program.parent)
            patch.setattr(sys, "argv", [str(program), *map(str, words)])
            for module in program.parent.glob("*.py"):
                patch.setitem(sys.modules, module.stem, None)  # so that undoing takes away what the program imports
                del sys.modules[module.stem]
            try:
                runpy.run_path(str(program), run_name="__main__")
                code = 0
            except SystemExit as left:
                code = left.code
        out, err = self._capsys.readouterr()
        if isinstance(code, str):
            return Done(code=1, out=out, err=f"{err}{code}\n")
        return Done(code=code or 0, out=out, err=err)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Programs:
    """Imported by the tests that run programs."""
    return Programs(monkeypatch, capsys)
