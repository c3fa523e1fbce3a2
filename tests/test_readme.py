"""What the README tells people to type works as it stands there."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from octavo.cli.main import main
from small_file import digits, write_small_net

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MEASURED = (ROOT / "docs" / "measured.md").read_text(encoding="utf-8")
MAX_LINES = 90
"""Of what somebody reads in five minutes."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def command_lines() -> list[str]:
    return [line for block in blocks("bash") for line in block.splitlines() if line.strip()]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current folder with the files that the README names: m.onnx, calib.npz and x.npz."""
    write_small_net(tmp_path / "m.onnx")
    np.savez(tmp_path / "calib.npz", x=digits(0, 40))
    np.savez(tmp_path / "x.npz", x=digits(40, 45))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_line_is_a_make_target_or_a_command() -> None:
    assert {line.split()[0] for line in command_lines()} == {"pip", "make", "octavo"}
    assert len(README.splitlines()) <= MAX_LINES


def test_pip_installs_a_clone(tmp_path: Path) -> None:
    [line] = [line for line in command_lines() if line.startswith("pip ")]
    clone, site = tmp_path / "clone", tmp_path / "site"
    shutil.copytree(ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    # What Octavo runs on is here; its build needs nothing from elsewhere.
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--target", str(site)]
    subprocess.run([sys.executable, "-m", *shlex.split(line), *options], cwd=clone, check=True)
    child = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, site / "bin" / "octavo", "--help"], env=child, capture_output=True, text=True, check=True
    )
    assert "quantize" in done.stdout
    modules = {path.relative_to(site) for path in (site / "octavo").rglob("*.py")}
    assert modules == {path.relative_to(ROOT / "src") for path in (ROOT / "src" / "octavo").rglob("*.py")}


def test_make_lines_are_what_continuous_integration_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in command_lines():
        if line.startswith("make "):
            assert line in script
            assert f"\n{line.removeprefix('make ')}:" in makefile


def test_the_commands_run_in_their_order(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in command_lines() if line.startswith("octavo ")]
    assert [line.split()[1] for line in lines] == ["profile", "quantize", "evaluate", "compile", "run"]
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
        assert capsys.readouterr().out
    with np.load("y.npz") as results:
        assert results["logits"].shape == (5, 10)


def test_the_python_example_runs(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [example] = blocks("python")
    Path("example.py").write_text(example, encoding="utf-8")
    runpy.run_path("example.py")
    assert "logits" in capsys.readouterr().out
    assert Path("m.so").stat().st_size > 0


def test_the_figures_are_those_of_the_page_of_figures() -> None:
    """The README has some of its rows for AVX-512 VNNI, without the column of ONNX Runtime, which reads none of these files."""

    def cells(text: str) -> list[list[str]]:
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]

    table = MEASURED.split("### AVX-512 VNNI\n")[1].split("\n### ")[0]
    heads, _, *rows = cells(table)
    left_out = heads.index("ONNX Runtime")
    known = [row[:left_out] + row[left_out + 1 :] for row in (heads, *rows)]
    shown = [row for row in cells(README) if not row[0].startswith("---")]
    assert len(shown) > 5
    assert [row for row in shown if row not in known] == []


def test_links_lead_to_files_of_the_repository() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#]+)", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []
