"""What `octavo COMMAND --help` prints without importing anything is what the parsers print, and takes no time.

`OCTAVO_UPDATE_HELP=1 pytest tests/cli/test_help_texts.py` writes the file anew.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import octavo_command
import octavo_parser
from child_python import run_python
from octavo.cli.main import build_parser

FILE = Path(octavo_command.__file__).with_name("octavo") / "cli" / "help.json"
PYTHON = ".".join(map(str, sys.version_info[:2]))


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the help of every command, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")
    found: dict[str, str] = {}
    for name in octavo_parser.SUMMARIES:
        with pytest.raises(SystemExit):
            build_parser().parse_args([*name.split(), "--help"])
        found[name] = capsys.readouterr().out
    return found


def test_the_texts_are_the_parsers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    texts = printed(monkeypatch, capsys)
    if os.environ.get("OCTAVO_UPDATE_HELP"):
        FILE.write_text(json.dumps({"python": PYTHON, "commands": texts}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    if stored["python"] == PYTHON:
        assert stored["commands"] == texts, "run this test with OCTAVO_UPDATE_HELP=1"
    # Versions of argparse break lines, and write usage, each in its own way.
    assert stored["commands"].keys() == texts.keys()
    for name, text in texts.items():
        assert options(stored["commands"][name]) == options(text), "run this test with OCTAVO_UPDATE_HELP=1"


def options(text: str) -> set[str]:
    return {word.strip("[],|()") for word in text.split() if word.strip("[],|()").startswith("--")}


def test_help_imports_neither_tvm_nor_numpy() -> None:
    code = (
        "import sys, octavo_command; octavo_command.main(['quantize', 'm.onnx', '--help']); "
        "print(sorted({'tvm', 'numpy', 'octavo'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("usage: octavo quantize ")
    assert lines[-1] == "[]"


def test_importing_octavo_imports_no_tvm_until_a_name_is_used() -> None:
    code = (
        "import sys, octavo; assert 'tvm' not in sys.modules and 'numpy' not in sys.modules; "
        "import octavo.errors; from octavo.profiling import Rows; "
        "print(octavo.profiling.__name__, callable(octavo.profile), 'tvm' in sys.modules, octavo.report.__name__)"
    )
    done = run_python(code, check=True)
    assert done.stdout.split() == ["octavo.profiling", "True", "True", "octavo.report"]
