"""What the README tells people to type works as it stands there."""

import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest

from octavo.cli.main import main
from small_file import digits, write_small_net

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


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
    assert {line.split()[0] for line in command_lines()} == {"make", "octavo"}


def test_make_lines_are_what_continuous_integration_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in command_lines():
        if line.startswith("make "):
            assert line in script
            assert f"\n{line.removeprefix('make ')}:" in makefile


def test_the_commands_run_in_their_order(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in command_lines() if line.startswith("octavo ")]
    assert len(lines) >= 6
    for line in lines:
        seconds = ["--seconds", "0.05"] if line.startswith(("octavo bench", "octavo tune")) else []
        assert main([*shlex.split(line)[1:], *seconds]) == 0, capsys.readouterr().err
        assert capsys.readouterr().out
    with np.load("y.npz") as results:
        assert results["logits"].shape == (5, 10)


def test_the_python_example_runs(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [example] = blocks("python")
    Path("example.py").write_text(example, encoding="utf-8")
    runpy.run_path("example.py")
    assert "logits" in capsys.readouterr().out
    assert Path("m.so").stat().st_size > 0


def test_links_lead_to_files_of_the_repository() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#]+)", re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []
